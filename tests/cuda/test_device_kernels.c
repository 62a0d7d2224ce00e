/* Kernels of the fatbins by name, launched through the device over the emulated driver: what a
 * family's launcher will do. */
#include <math.h>

#include "kernels/cuda/softmax.h"
#include "tests/cuda/fake_device.h"

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
    CHECK_OK(hl_cuda_kernel_get(device, "hl_cuda_softmax_f32", 0, &kernel));
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
    CHECK_ERROR(hl_cuda_kernel_get(device, "hl_cuda_softmax_f32", 1 << 20, &kernel),
                HL_ERROR_DEVICE, "needs at most 65536 bytes of shared memory, got 1048576");
    ops->memory_free(device, dy);
#ifdef __SANITIZE_ADDRESS__
    CHECK_SKIP("the address sanitizer ends the process at such a fault (make test runs it)");
#else
    /* Memory that was freed is a fault of the kernel, in words. */
    CHECK_OK(ops->capture_launch(device, capture, NULL));
    CHECK_ERROR(ops->synchronize(device, NULL), HL_ERROR_DEVICE_LOST, "LAUNCH_FAILED");
    CHECK(strstr(hl_fake_message(), "hl_cuda_softmax_f32") != NULL);
#endif
    ops->capture_destroy(device, capture);
    ops->memory_free(device, dx);
    fake_device_close(device);
}

int main(void)
{
    test_softmax();
    return CHECK_DONE();
}
