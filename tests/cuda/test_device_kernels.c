/* Kernels of the fatbins by name, launched through the device over the emulated driver: what a
 * family's launcher does; and which of the kernels on rows a launcher takes. */
#include "kernels/cuda/loss.h"
#include "kernels/cuda/softmax.h"
#include "tests/cuda/device_case.h"

enum { R = 5, C = 37, N = R * C };

static hl_status launch_softmax(hl_device *device, CUfunction kernel, void *x, void *y)
{
    hl_cuda_shape shape = {{2, 1, 1}, {64, 1, 1}, 0};
    hl_cuda_softmax_params params = {
        .at.x.bits = (uintptr_t)x, .at.y.bits = (uintptr_t)y, .R = R, .C = C};
    return hl_cuda_launch(device, kernel, &shape, NULL, (void *[]){&params, NULL});
}

static void check_softmax(const float *x, const float *y)
{
    for (int r = 0; r < R; r++) {
        double sum = 0;
        for (int c = 0; c < C; c++) sum += exp(x[r * C + c]);
        for (int c = 0; c < C; c++) {
            double error = fabs(y[r * C + c] - exp(x[r * C + c]) / sum);
            if (!(error < 1e-6)) check_fail(__FILE__, __LINE__, "row %d: off by %g", r, error);
        }
    }
}

static void test_softmax(void)
{
    hl_device *device = fake_device_open(NULL);
    const hl_device_ops *ops = device->ops;
    float x[N], y[2][N];
    void *dx, *dy;
    CUfunction kernel;
    hl_capture *capture;
    for (int i = 0; i < N; i++) x[i] = (float)sin(i) * 3;
    CHECK_OK(ops->memory_alloc(device, sizeof x, &dx));
    CHECK_OK(ops->memory_alloc(device, sizeof x, &dy));
    CHECK_OK(ops->copy(device, dx, x, sizeof x, HL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(hl_cuda_kernel_get(device, "hl_cuda_softmax_f32_x4", 0, &kernel));
    CHECK_OK(launch_softmax(device, kernel, dx, dy));
    CHECK_OK(ops->copy(device, y[0], dy, sizeof x, HL_COPY_DEVICE_TO_HOST, NULL));
    CHECK_OK(ops->fill_zero(device, dy, sizeof x, NULL));
    CHECK_OK(ops->capture_begin(device, NULL));
    CHECK_OK(launch_softmax(device, kernel, dx, dy));
    CHECK_OK(ops->capture_end(device, NULL, &capture));
    CHECK_OK(ops->capture_launch(device, capture, NULL));
    CHECK_OK(ops->copy(device, y[1], dy, sizeof x, HL_COPY_DEVICE_TO_HOST, NULL));
    CHECK_OK(ops->synchronize(device, NULL));
    check_softmax(x, y[0]);
    CHECK(memcmp(y[0], y[1], sizeof x) == 0);
    CHECK_ERROR(hl_cuda_kernel_get(device, "hl_cuda_nothing", 0, &kernel), HL_ERROR_DEVICE,
                "hl_cuda_nothing: cuda: loading the kernel must succeed, got CUDA_ERROR_NOT_FOUND");
    CHECK_ERROR(hl_cuda_kernel_get(device, "hl_cuda_softmax_f32_x4", 1 << 20, &kernel),
                HL_ERROR_DEVICE, "needs at most 65536 bytes of shared memory, got 1048576");
    ops->memory_free(device, dy);
#ifdef __SANITIZE_ADDRESS__
    CHECK_SKIP("the address sanitizer ends the process at such a fault (make test runs it)");
#else
    /* Memory that was freed is a fault of the kernel, in words. */
    CHECK_OK(ops->capture_launch(device, capture, NULL));
    CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE_LOST, "LAUNCH_FAILED");
    CHECK(strstr(hl_fake_message(), "hl_cuda_softmax_f32_x4") != NULL);
#endif
    ops->capture_destroy(device, capture);
    ops->memory_free(device, dx);
    fake_device_close(device);
}

/* ---- kernels by the length of rows ----------------------------------------------------------- */

static const char *refuse(void *context, const hl_fake_launch *launch, void *const *params)
{
    (void)context, (void)launch, (void)params;
    return "a kernel for rows of another length";
}

/* Softmax and the losses on rows of n_classes: no kernel runs but those that hold `keep` values a
 * thread. */
static void check_row_keep(int64_t n_classes, int keep)
{
    static const struct {
        const char *kind;
        hl_op op;
        size_t bytes;
    } kernels[] = {
        {"softmax_f32", HL_OP_SOFTMAX, sizeof(hl_cuda_softmax_params)},
        {"softmax_log_f32", HL_OP_LOG_SOFTMAX, sizeof(hl_cuda_softmax_params)},
        {"softmax_grad_f32", HL_OP_SOFTMAX_GRAD, sizeof(hl_cuda_softmax_grad_params)},
        {"softmax_grad_log_f32", HL_OP_LOG_SOFTMAX_GRAD, sizeof(hl_cuda_softmax_grad_params)},
        {"cross_entropy_f32", HL_OP_CROSS_ENTROPY, sizeof(hl_cuda_cross_entropy_params)},
        {"cross_entropy_grad_f32", HL_OP_CROSS_ENTROPY_GRAD,
         sizeof(hl_cuda_cross_entropy_grad_params)},
    };
    static const int keeps[] = {1, 4, 32};
    char name[64];
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
        bool is_loss = k >= 4, is_grad = kernels[k].op == HL_OP_CROSS_ENTROPY_GRAD;
        op_case c = {.op = kernels[k].op, .n_out = 1 + (is_loss && !is_grad), .tolerance = 1e-4};
        hl_type rows = {HL_DTYPE_F32, hl_shape_2d(3, n_classes)},
                values = {HL_DTYPE_F32, hl_shape_1d(3)};
        c.n_in = is_loss ? 2 + is_grad : hl_op_get(c.op)->min_in;
        for (int i = 0; i < c.n_in; i++) c.in[i] = rows;
        if (is_grad) c.in[0] = values;
        if (is_loss) c.in[c.n_in - 1] = (hl_type){HL_DTYPE_I64, hl_shape_1d(3)};
        c.out[0] = is_loss && !is_grad ? values : rows, c.out[1] = values;
        if (is_loss) c.attrs.cross_entropy.ignore_index = -100;
        for (int i = 0; i < c.n_in; i++)
            case_fill(&c, i, 0, i == c.n_in - 1 && is_loss ? (double)n_classes : 1);
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "hl_cuda_%s_x%d", kernels[k].kind, keeps[i]);
            if (keeps[i] != keep) hl_fake_kernel(name, refuse, NULL, 1, &kernels[k].bytes);
        }
        check_case("%s of rows of %d, %d values a thread", kernels[k].kind, (int)n_classes, keep);
        case_check(&c);
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "hl_cuda_%s_x%d", kernels[k].kind, keeps[i]);
            hl_fake_kernel_restore(name);
        }
    }
}

static void test_row_keeps(void)
{
    static const int64_t few[] = {1, 2, 10, 32}, some[] = {33, 128}, many[] = {129, 1025, 9000};
    case_open();
    for (int i = 0; i < 4; i++) check_row_keep(few[i], 1);
    for (int i = 0; i < 2; i++) check_row_keep(some[i], 4);
    for (int i = 0; i < 3; i++) check_row_keep(many[i], 32);
    case_close();
}

int main(void)
{
    test_softmax();
    test_row_keeps();
    return CHECK_DONE();
}
