/* Null backend: every op has a kernel that accepts and does nothing.
 *
 * Everything above kernels (passes, memory, plan, run) runs on it without hardware, which is how it
 * is tested, and it is the smallest whole backend: copy it to begin a new one. Memory is real. */
#include "backend/host.h"
#include "base/alloc.h"

static hl_status accept_node(hl_device *device, const hl_graph *graph, hl_node_id node,
                             hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)node, (void)out_why_not;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_nothing(hl_device *device, const hl_graph *graph, hl_node_id node,
                                 hl_kernel_state *out_state)
{
    (void)device, (void)graph, (void)node;
    out_state->impl = NULL;
    return HL_OK;
}

static hl_status launch_nothing(const hl_kernel_state *state, void *const *args,
                                const hl_launch *launch, hl_stream *stream)
{
    (void)state, (void)args, (void)launch, (void)stream;
    return HL_OK;
}

#define HL_OP(id, op_name, ...)                                                                    \
    static const hl_kernel kernel_##id = {.op = HL_OP_##id,                                        \
                                          .name = "null." op_name,                                 \
                                          .query = accept_node,                                    \
                                          .prepare = prepare_nothing,                              \
                                          .launch = launch_nothing};                               \
    static const hl_kernel *const list_##id[] = {&kernel_##id, NULL};
#include "ir/ops.def"
#undef HL_OP

static const hl_kernel *const *list_kernels(const hl_device *device, hl_op op)
{
    static const hl_kernel *const *const lists[HL_OP_COUNT] = {
#define HL_OP(id, ...) [HL_OP_##id] = list_##id,
#include "ir/ops.def"
#undef HL_OP
    };
    (void)device;
    return (unsigned)op < HL_OP_COUNT ? lists[op] : NULL;
}

/* Allocates zeros, so that a test always reads the same back. */
static hl_status alloc_zeros(hl_device *device, size_t bytes, void **out_ptr)
{
    (void)device;
    return hl_alloc_zero(bytes, out_ptr);
}

static const hl_device_ops device_ops = {
    .destroy = hl_host_destroy,
    .memory_alloc = alloc_zeros,
    .memory_free = hl_host_free,
    .copy = hl_host_copy,
    .fill_zero = hl_host_fill_zero,
    .synchronize = hl_host_synchronize,
    .kernels = list_kernels,
};

static hl_status open_device(const hl_backend *backend, int index, const hl_device_options *options,
                             hl_device **out_device)
{
    (void)options;
    *out_device = NULL;
    HL_TRY(hl_host_check_index(backend, index));
    void *memory;
    HL_TRY(hl_alloc_zero(sizeof(hl_device), &memory));
    hl_device *device = memory;
    device->ops = &device_ops;
    device->backend = backend;
    hl_text_copy(device->name, sizeof device->name, "null");
    device->n_threads = 1;
    device->float_type = HL_DTYPE_F32;
    device->fuses = true;
    device->packs = true;
    device->alignment = HL_ALIGN;
    *out_device = device;
    return HL_OK;
}

const hl_backend *hl_null_backend(void)
{
    static const hl_backend backend = {.name = "null", .device_open = open_device};
    return &backend;
}
