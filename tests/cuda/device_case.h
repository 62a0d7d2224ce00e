/* One node run on the emulated GPU and on the reference backend, and compared.
 *
 * A case (tests/c/case.h) is launched, replayed from a capture, and launched with its output over
 * each input that the kernel allows: all runs must give the same bits. Around every operand lie
 * guards, which read as NaN, as scratch and outputs do; attributes' names are gone by the launch,
 * as they are in a plan. */
#ifndef TESTS_CUDA_DEVICE_CASE_H
#define TESTS_CUDA_DEVICE_CASE_H

#include "tests/c/case.h"
#include "tests/cuda/fake_table.h"

enum { DEVICE_GUARD = 256 };

static hl_device *case_gpu;
/* How the next cases run: by deterministic kernels alone; operands so many bytes off from where
 * they would lie aligned. */
static bool case_deterministic;
static size_t case_shift;

static size_t device_lead(void)
{
    return DEVICE_GUARD + case_shift;
}

__attribute__((unused)) static void case_open(void)
{
    const hl_backend *backend = hl_fake_backend();
    hl_fake_reset(NULL);
    CHECK_OK(backend->device_open(backend, 0, NULL, &case_gpu));
    CHECK_OK(hl_ref_backend()->device_open(hl_ref_backend(), 0, NULL, &case_ref));
}

__attribute__((unused)) static void case_close(void)
{
    case_gpu->ops->destroy(case_gpu);
    case_ref->ops->destroy(case_ref);
    CHECK_INT(hl_fake_live_sum(), 0);
}

/* An operand in device memory, guards before and behind. */
typedef struct device_buffer {
    unsigned char *at;
    size_t bytes;
} device_buffer;

static device_buffer device_put(const void *data, size_t bytes)
{
    const hl_device_ops *ops = case_gpu->ops;
    size_t total = device_lead() + bytes + DEVICE_GUARD;
    unsigned char *image = malloc(total);
    void *memory = NULL;
    memset(image, 0xFF, total);
    if (data) memcpy(image + device_lead(), data, bytes);
    CHECK_OK(ops->memory_alloc(case_gpu, total, &memory));
    CHECK_OK(ops->copy(case_gpu, memory, image, total, HL_COPY_HOST_TO_DEVICE, NULL));
    CHECK_OK(ops->synchronize(case_gpu, NULL));
    free(image);
    return (device_buffer){(unsigned char *)memory + device_lead(), bytes};
}

/* Reads the operand and gives its memory back. */
static unsigned char *device_take(device_buffer buffer)
{
    const hl_device_ops *ops = case_gpu->ops;
    size_t total = device_lead() + buffer.bytes + DEVICE_GUARD;
    unsigned char *image = malloc(total), *memory = buffer.at - device_lead();
    CHECK_OK(ops->copy(case_gpu, image, memory, total, HL_COPY_DEVICE_TO_HOST, NULL));
    CHECK_OK(ops->synchronize(case_gpu, NULL));
    ops->memory_free(case_gpu, memory);
    for (size_t i = 0; i < DEVICE_GUARD; i++)
        if (image[i] != 0xFF || image[device_lead() + buffer.bytes + i] != 0xFF) {
            check_fail(__FILE__, __LINE__, "byte %d of a guard was written", (int)i);
            break;
        }
    memmove(image, image + device_lead(), buffer.bytes);
    return image;
}

static hl_status device_launch(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, bool captured)
{
    const hl_device_ops *ops = case_gpu->ops;
    hl_capture *capture = NULL;
    if (!captured) return state->kernel->launch(state, args, launch, NULL);
    HL_TRY(ops->capture_begin(case_gpu, NULL));
    hl_status status = state->kernel->launch(state, args, launch, NULL);
    hl_status ended = ops->capture_end(case_gpu, NULL, &capture);
    if (status == HL_OK) status = ended;
    if (status == HL_OK) status = ops->capture_launch(case_gpu, capture, NULL);
    if (status == HL_OK) status = ops->synchronize(case_gpu, NULL);
    ops->capture_destroy(case_gpu, capture);
    return status;
}

/* The input's bytes, from malloc. */
static unsigned char *case_make_input(const op_case *c, int i)
{
    int64_t n = hl_shape_numel(&c->in[i].shape);
    unsigned char *host = malloc(case_bytes(&c->in[i]) + 1);
    for (int64_t e = 0; e < n; e++) case_store(host, c->in[i].dtype, e, c->data[i][e]);
    return host;
}

/* in_place: output 0 lies over this input, or CASE_APART. out_bytes[j]: from malloc. */
static bool case_run_device(op_case *c, bool captured, int in_place, unsigned char **out_bytes,
                            hl_kernel_req *out_req)
{
    case_graph g;
    device_buffer buffer[2 * CASE_MAX] = {{NULL, 0}};
    unsigned char *host[CASE_MAX] = {NULL};
    void *args[2 * CASE_MAX];
    int n_args = c->n_in + c->n_out;
    hl_kernel_state state = {NULL, NULL};
    case_build(c, false, &g);
    hl_status status =
        hl_kernel_select(case_gpu, &g.graph, 0, case_deterministic, &state.kernel, out_req);
    if (status == HL_OK) status = state.kernel->prepare(case_gpu, &g.graph, 0, &state);
    CHECK_OK(status);
    if (status != HL_OK) return false;
    g.node.attrs.name = NULL;
    device_buffer control = device_put(&c->control, sizeof c->control);
    device_buffer scratch = device_put(NULL, out_req->scratch_bytes);
    for (int v = 0; v < n_args; v++) {
        int j = v - c->n_in;
        if (j < 0 && c->is_control[v]) {
            buffer[v] = control;
        } else if (j < 0) {
            host[v] = case_make_input(c, v);
            buffer[v] = device_put(host[v], case_bytes(&c->in[v]));
        } else if (c->is_guarded || (j == 0 && in_place >= 0)) {
            buffer[v] = buffer[c->is_guarded ? j : in_place];
        } else {
            buffer[v] = device_put(NULL, case_bytes(&c->out[j]));
        }
        args[v] = buffer[v].at;
    }
    hl_launch launch = {
        .scratch = scratch.at, .control = (hl_control *)control.at, .segment = c->segment};
    CHECK_OK(device_launch(&state, args, &launch, captured));
    for (int v = n_args; v-- > 0;) { /* outputs first: they may lie over inputs */
        int j = v - c->n_in;
        bool is_over = j >= 0 && (c->is_guarded || (j == 0 && in_place >= 0));
        if (buffer[v].at == NULL || buffer[v].at == control.at) continue;
        unsigned char *bytes = device_take(buffer[v]);
        if (is_over) buffer[c->is_guarded ? j : in_place].at = NULL;
        if (j >= 0) {
            out_bytes[j] = bytes;
            continue;
        }
        CHECK(memcmp(bytes, host[v], case_bytes(&c->in[v])) == 0);
        free(bytes);
    }
    for (int v = 0; v < c->n_in; v++) free(host[v]);
    free(device_take(scratch));
    unsigned char *block = device_take(control);
    memcpy(&c->control_after[0], block, sizeof c->control);
    free(block);
    state.kernel->release(&state);
    return true;
}

/* Every run of the head, and the same bits of them; got[] and control_after[0] from the last. */
static bool case_run_gpu(op_case *c, unsigned char **first)
{
    hl_kernel_req req = {0};
    if (!case_run_device(c, false, CASE_APART, first, &req)) return false;
    hl_control control = c->control_after[0];
    uint64_t places = c->is_guarded ? 0 : req.in_place;
    for (int place = CASE_APART; place < c->n_in; place++) {
        unsigned char *again[CASE_MAX] = {NULL};
        if (place >= 0 && !(places >> place & 1)) continue;
        case_run_device(c, place == CASE_APART, place, again, &req);
        for (int j = 0; j < c->n_out; j++) {
            bool is_same = !first[j] || memcmp(first[j], again[j], case_bytes(&c->out[j])) == 0;
            if (!is_same)
                check_fail(__FILE__, __LINE__, "output %d: other bits, %s %d", j,
                           place == CASE_APART ? "captured" : "in place of", place);
            free(again[j]);
        }
        CHECK_INT(memcmp(&control, &c->control_after[0], sizeof control), 0);
    }
    for (int j = 0; j < c->n_out; j++) {
        int64_t n = hl_shape_numel(&c->out[j].shape);
        if (!first[j]) continue;
        c->got[j] = realloc(c->got[j], (size_t)(n + 1) * sizeof(double));
        for (int64_t e = 0; e < n; e++) c->got[j][e] = case_load(first[j], c->out[j].dtype, e);
    }
    return true;
}

/* Everything the head of this file promises, for one case; then frees the case's memory. */
__attribute__((unused)) static void case_check(op_case *c)
{
    unsigned char *first[CASE_MAX] = {NULL};
    uint64_t ignored;
    if (case_run_gpu(c, first) && !c->allows_any &&
        case_run_once(c, case_ref, 1, CASE_APART, NULL, &ignored))
        case_compare(c);
    for (int j = 0; j < CASE_MAX; j++) free(first[j]);
    case_forget(c);
}

#endif
