/* The reference device: host memory, one thread, no blocks; and the helpers of all families. */
#include <math.h>

#include "backend/host.h"
#include "base/alloc.h"
#include "base/half.h"
#include "kernels/ref/ref.h"

/* ---- elements of any dtype ------------------------------------------------------------------- */

double hl_ref_load(const void *data, hl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_F64: return ((const double *)data)[i];
    case HL_DTYPE_F32: return (double)((const float *)data)[i];
    case HL_DTYPE_BF16: return (double)hl_bf16_to_f32(((const uint16_t *)data)[i]);
    case HL_DTYPE_F16: return (double)hl_f16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)hl_ref_load_int(data, dtype, i);
    }
}

void hl_ref_store(void *data, hl_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case HL_DTYPE_F64: ((double *)data)[i] = value; break;
    case HL_DTYPE_F32: ((float *)data)[i] = (float)value; break;
    case HL_DTYPE_BF16: ((uint16_t *)data)[i] = hl_f32_to_bf16((float)value); break;
    case HL_DTYPE_F16: ((uint16_t *)data)[i] = hl_f32_to_f16((float)value); break;
    case HL_DTYPE_BOOL: ((uint8_t *)data)[i] = value != 0.0; break;
    default: hl_ref_store_int(data, dtype, i, hl_ref_truncate(value)); break;
    }
}

int64_t hl_ref_load_int(const void *data, hl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_I64: return ((const int64_t *)data)[i];
    case HL_DTYPE_I32: return ((const int32_t *)data)[i];
    case HL_DTYPE_I16: return ((const int16_t *)data)[i];
    case HL_DTYPE_I8: return ((const int8_t *)data)[i];
    case HL_DTYPE_U8: return ((const uint8_t *)data)[i];
    case HL_DTYPE_BOOL: return ((const uint8_t *)data)[i] != 0;
    default: return hl_ref_truncate(hl_ref_load(data, dtype, i));
    }
}

void hl_ref_store_int(void *data, hl_dtype dtype, int64_t i, int64_t value)
{
    switch (dtype) {
    case HL_DTYPE_I64: ((int64_t *)data)[i] = value; break;
    case HL_DTYPE_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case HL_DTYPE_I16: ((int16_t *)data)[i] = (int16_t)value; break;
    case HL_DTYPE_I8: ((int8_t *)data)[i] = (int8_t)value; break;
    case HL_DTYPE_U8: ((uint8_t *)data)[i] = (uint8_t)value; break;
    case HL_DTYPE_BOOL: ((uint8_t *)data)[i] = value != 0; break;
    default: hl_ref_store(data, dtype, i, (double)value); break;
    }
}

int64_t hl_ref_truncate(double value)
{
    if (isnan(value)) return 0;
    if (value >= 0x1p63) return INT64_MAX;
    if (value <= -0x1p63) return INT64_MIN;
    return (int64_t)value;
}

/* ---- places in row-major arrays -------------------------------------------------------------- */

int64_t hl_ref_offset(const hl_shape *shape, const int64_t *stride, int64_t linear)
{
    int64_t offset = 0;
    for (int d = shape->rank - 1; d >= 0; d--) {
        offset += linear % shape->dim[d] * stride[d];
        linear /= shape->dim[d];
    }
    return offset;
}

hl_ref_groups hl_ref_groups_make(const hl_shape *shape, const int64_t *axes, int32_t n_axes)
{
    hl_ref_groups groups = {0};
    int64_t stride[HL_MAX_RANK];
    hl_shape_strides(shape, stride);
    for (int d = 0; d < shape->rank; d++) {
        bool is_reduced = n_axes == 0;
        for (int32_t a = 0; a < n_axes; a++) is_reduced |= axes[a] == d;
        hl_shape *part = is_reduced ? &groups.reduced : &groups.kept;
        int64_t *part_stride = is_reduced ? groups.reduced_stride : groups.kept_stride;
        part_stride[part->rank] = stride[d];
        part->dim[part->rank++] = shape->dim[d];
    }
    groups.n_groups = hl_shape_numel(&groups.kept);
    groups.n_inside = hl_shape_numel(&groups.reduced);
    return groups;
}

/* ---- what all kernels do --------------------------------------------------------------------- */

hl_status hl_ref_query_any(hl_device *device, const hl_graph *graph, hl_node_id node,
                           hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)graph, (void)node, (void)out_why_not;
    out_req->deterministic = true;
    return HL_OK;
}

hl_status hl_ref_query_f64(hl_device *device, const hl_graph *graph, hl_node_id node,
                           hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *n = &graph->nodes[node];
    for (int32_t i = 0; i < n->n_in + n->n_out; i++) {
        hl_id id = i < n->n_in ? n->in[i] : n->out + i - n->n_in;
        hl_dtype dtype = hl_graph_dtype(graph, id);
        if (hl_dtype_is_float(dtype) && dtype != HL_DTYPE_F64)
            return hl_reason_set(out_why_not, "needs float64, got %s as operand %d",
                                 hl_dtype_name(dtype), (int)i);
    }
    return hl_ref_query_any(device, graph, node, out_req, out_why_not);
}

hl_status hl_ref_prepare(hl_device *device, const hl_graph *graph, hl_node_id node,
                         hl_kernel_state *out_state)
{
    (void)device;
    out_state->impl = NULL;
    const hl_node *n = &graph->nodes[node];
    size_t types_bytes = (size_t)(n->n_in + n->n_out) * sizeof(hl_type);
    void *memory;
    HL_TRY(hl_alloc(sizeof(hl_ref_call) + types_bytes, &memory));
    hl_ref_call *call = memory;
    hl_type *types = (hl_type *)(call + 1);
    for (int32_t i = 0; i < n->n_in; i++) types[i] = graph->values[n->in[i]].type;
    for (int32_t j = 0; j < n->n_out; j++) types[n->n_in + j] = graph->values[n->out + j].type;
    *call = (hl_ref_call){.attrs = n->attrs,
                          .axes = hl_node_axes(n),
                          .n_in = n->n_in,
                          .n_out = n->n_out,
                          .in = types,
                          .out = types + n->n_in};
    out_state->impl = call;
    return HL_OK;
}

int64_t hl_ref_find_input(const hl_window *window, int64_t pixel, int64_t tap)
{
    int64_t place = 0, scale = 1;
    for (int d = HL_WINDOW_DIMS - 1; d >= 0; d--) {
        int64_t o = pixel % window->out[d], k = tap % window->kernel[d];
        int64_t in = hl_window_at(window, d, o, k);
        if (in < 0 || in >= window->in[d]) return -1;
        place += in * scale;
        scale *= window->in[d];
        pixel /= window->out[d];
        tap /= window->kernel[d];
    }
    return place;
}

/* ---- the device ------------------------------------------------------------------------------ */

typedef struct ref_device {
    hl_device base;
    const hl_kernel *list[HL_OP_COUNT][2]; /* NULL-terminated, one kernel at most */
} ref_device;

static const hl_kernel *const *list_kernels(const hl_device *device, hl_op op)
{
    return (unsigned)op < HL_OP_COUNT ? ((const ref_device *)device)->list[op] : NULL;
}

static const hl_device_ops device_ops = {
    .destroy = hl_host_destroy,
    .memory_alloc = hl_host_alloc,
    .memory_free = hl_host_free,
    .copy = hl_host_copy,
    .fill_zero = hl_host_fill_zero,
    .synchronize = hl_host_synchronize,
    .kernels = list_kernels,
};

/* fuses is false so that the oracle runs graphs as they were built; it has the kernel all the same,
 * so that a fused graph can be held against the unfused one. */
static hl_status open_device(const hl_backend *backend, int index, const hl_device_options *options,
                             hl_device **out_device)
{
    static const hl_ref_family *const families[] = {
        &hl_ref_pointwise,  &hl_ref_matmul, &hl_ref_conv,    &hl_ref_unfold,  &hl_ref_pool,
        &hl_ref_resample,   &hl_ref_reduce, &hl_ref_softmax, &hl_ref_loss,    &hl_ref_attention,
        &hl_ref_copy,       &hl_ref_index,  &hl_ref_norm,    &hl_ref_control, &hl_ref_optim,
        &hl_ref_recurrence, &hl_ref_ctc,    &hl_ref_linalg,  &hl_ref_stat,    &hl_ref_sort,
        &hl_ref_deformable};
    (void)options;
    *out_device = NULL;
    HL_TRY(hl_host_check_index(backend, index));
    void *memory;
    HL_TRY(hl_alloc_zero(sizeof(ref_device), &memory));
    ref_device *device = memory;
    device->base.ops = &device_ops;
    device->base.backend = backend;
    hl_text_copy(device->base.name, sizeof device->base.name, "reference, float64");
    device->base.n_threads = 1;
    device->base.float_type = HL_DTYPE_F64;
    device->base.alignment = HL_ALIGN;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        for (int i = 0; i < families[f]->n; i++) {
            const hl_kernel *kernel = &families[f]->kernels[i];
            device->list[kernel->op][0] = kernel;
        }
    }
    *out_device = &device->base;
    return HL_OK;
}

const hl_backend *hl_ref_backend(void)
{
    static const hl_backend backend = {.name = "ref", .device_open = open_device};
    return &backend;
}
