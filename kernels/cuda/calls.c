/* Lists of calls: made by prepare, run by every launch. */
#include "kernels/cuda/calls.h"

#include <stdio.h>
#include <string.h>

typedef enum hl_cuda_call_kind { CALL_KERNEL, CALL_COPY, CALL_ZERO } hl_cuda_call_kind;

struct hl_cuda_call {
    hl_cuda_call_kind kind;
    CUfunction kernel;
    hl_cuda_shape shape;
    int64_t first_param, n_params; /* COPY: to, from; ZERO: what */
    size_t bytes;
    size_t alignment; /* of its operands, else the next call is made instead; 0: any */
};

typedef enum hl_cuda_param_kind {
    PARAM_VALUE,
    PARAM_ARG,
    PARAM_SCRATCH,
    PARAM_NULL,
    PARAM_ARGS,
    PARAM_UPLOAD,
    PARAM_CONTROL,
    PARAM_FAULT,
    PARAM_IS_APPLY
} hl_cuda_param_kind;

struct hl_cuda_param {
    hl_cuda_param_kind kind;
    size_t
        at; /* VALUE: offset of its bytes; ARG: number; SCRATCH: offset; ARGS: how many there are */
};

/* ARGS: the pointers that a kernel takes as one array by value. */
enum { CALL_PARAMS = 24, CALL_ARGS = 128, VALUE_ALIGN = 16 };

/* ---- making ---------------------------------------------------------------------------------- */

hl_cuda_calls hl_cuda_calls_begin(hl_device *device, const hl_graph *graph, hl_node_id id)
{
    const hl_node *node = &graph->nodes[id];
    return (hl_cuda_calls){
        .device = device, .n_in = node->n_in, .n_args = node->n_in + node->n_out};
}

static void free_lists(hl_cuda_calls *calls)
{
    hl_free(calls->upload);
    hl_free(calls->call);
    hl_free(calls->param);
    hl_free(calls->value);
}

hl_status hl_cuda_calls_end(hl_cuda_calls *calls, hl_kernel_state *out_state)
{
    void *impl = NULL;
    if (calls->status == HL_OK) calls->status = hl_alloc(sizeof *calls, &impl);
    if (calls->status != HL_OK) {
        free_lists(calls);
        return calls->status;
    }
    memcpy(impl, calls, sizeof *calls);
    out_state->impl = impl;
    out_state->upload = calls->upload;
    out_state->upload_bytes = calls->upload_bytes;
    return HL_OK;
}

void hl_cuda_calls_release(hl_kernel_state *state)
{
    if (state->impl) free_lists(state->impl);
    hl_free(state->impl);
}

#define GROW(calls, array, n, capacity, by)                                                        \
    ((calls)->status == HL_OK &&                                                                   \
     ((calls)->status = hl_alloc_grow((void **)&(calls)->array, &(calls)->capacity,                \
                                      (calls)->n + (by), sizeof *(calls)->array)) == HL_OK)

static hl_cuda_call *add_call(hl_cuda_calls *calls, hl_cuda_call_kind kind)
{
    if (!GROW(calls, call, n_calls, cap_calls, 1)) return NULL;
    hl_cuda_call *call = &calls->call[calls->n_calls++];
    *call = (hl_cuda_call){.kind = kind, .first_param = calls->n_params};
    return call;
}

static void add_param(hl_cuda_calls *calls, hl_cuda_param_kind kind, size_t at)
{
    if (!GROW(calls, param, n_params, cap_params, 1)) return;
    hl_cuda_call *call = &calls->call[calls->n_calls - 1];
    if (call->n_params == CALL_PARAMS) {
        calls->status = hl_status_set(HL_ERROR_INTERNAL,
                                      "cuda: a kernel must have at most %d "
                                      "parameters, got one more",
                                      CALL_PARAMS);
        return;
    }
    calls->param[calls->n_params++] = (hl_cuda_param){kind, at};
    call->n_params++;
}

void hl_cuda_call_kernel(hl_cuda_calls *calls, const char *name, hl_cuda_shape shape)
{
    hl_cuda_call *call = add_call(calls, CALL_KERNEL);
    if (!call) return;
    call->shape = shape;
    calls->status = hl_cuda_kernel_get(calls->device, name, shape.shared_bytes, &call->kernel);
}

void hl_cuda_call_together(hl_cuda_calls *calls, const char *name, int32_t n, int64_t most,
                           const void *parts, size_t bytes)
{
    hl_cuda_shape shape = hl_cuda_shape_elements(calls->device, most);
    shape.grid[1] = (unsigned)n;
    calls->n_args *= n;
    hl_cuda_call_kernel(calls, name, shape);
    hl_cuda_pass_operands(calls);
    hl_cuda_pass(calls, parts, bytes);
    HL_CUDA_PASS(calls, int, n);
}

void hl_cuda_call_copy(hl_cuda_calls *calls, hl_cuda_place to, hl_cuda_place from, size_t bytes)
{
    hl_cuda_call *call = add_call(calls, CALL_COPY);
    if (!call) return;
    call->bytes = bytes;
    hl_cuda_pass_place(calls, to);
    hl_cuda_pass_place(calls, from);
}

void hl_cuda_call_zero(hl_cuda_calls *calls, hl_cuda_place at, size_t bytes)
{
    hl_cuda_call *call = add_call(calls, CALL_ZERO);
    if (!call) return;
    call->bytes = bytes;
    hl_cuda_pass_place(calls, at);
}

void hl_cuda_call_aligned(hl_cuda_calls *calls, size_t bytes)
{
    if (calls->status == HL_OK) calls->call[calls->n_calls - 1].alignment = bytes;
}

void hl_cuda_pass(hl_cuda_calls *calls, const void *value, size_t bytes)
{
    int64_t at = calls->n_bytes, room = hl_round_up((int64_t)bytes, VALUE_ALIGN);
    if (!GROW(calls, value, n_bytes, cap_bytes, room)) return;
    /* What is shorter than the kernel's parameter reads as nonsense, not by luck as what it is. */
    memset(calls->value + at, 0xFF, (size_t)room);
    memcpy(calls->value + at, value, bytes);
    calls->n_bytes += room;
    add_param(calls, PARAM_VALUE, (size_t)at);
}

void hl_cuda_pass_place(hl_cuda_calls *calls, hl_cuda_place place)
{
    switch (place.of) {
    case HL_CUDA_IN: hl_cuda_pass_in(calls, (int)place.at); break;
    case HL_CUDA_OUT: hl_cuda_pass_out(calls, (int)place.at); break;
    case HL_CUDA_SCRATCH: hl_cuda_pass_scratch(calls, place.at); break;
    }
}

void hl_cuda_pass_in(hl_cuda_calls *calls, int input)
{
    if (input < calls->n_in)
        add_param(calls, PARAM_ARG, (size_t)input);
    else
        add_param(calls, PARAM_NULL, 0);
}
void hl_cuda_pass_out(hl_cuda_calls *calls, int output)
{
    add_param(calls, PARAM_ARG, (size_t)(calls->n_in + output));
}
void hl_cuda_pass_scratch(hl_cuda_calls *calls, size_t offset)
{
    add_param(calls, PARAM_SCRATCH, offset);
}
void hl_cuda_pass_null(hl_cuda_calls *calls)
{
    add_param(calls, PARAM_NULL, 0);
}
void hl_cuda_pass_operands(hl_cuda_calls *calls)
{
    if (calls->status == HL_OK && calls->n_args > CALL_ARGS)
        calls->status = hl_status_set(HL_ERROR_INTERNAL,
                                      "cuda: a kernel must have at most %d "
                                      "operands, got %d",
                                      CALL_ARGS, calls->n_args);
    add_param(calls, PARAM_ARGS, (size_t)calls->n_args);
}
void hl_cuda_pass_control(hl_cuda_calls *calls)
{
    add_param(calls, PARAM_CONTROL, 0);
}
void hl_cuda_pass_fault(hl_cuda_calls *calls)
{
    add_param(calls, PARAM_FAULT, 0);
}
void hl_cuda_pass_is_apply(hl_cuda_calls *calls)
{
    add_param(calls, PARAM_IS_APPLY, 0);
}

void hl_cuda_pass_upload(hl_cuda_calls *calls, const void *data, size_t bytes)
{
    if (calls->status == HL_OK) calls->status = hl_alloc(bytes, &calls->upload);
    if (calls->status != HL_OK) return;
    memcpy(calls->upload, data, bytes);
    calls->upload_bytes = bytes;
    add_param(calls, PARAM_UPLOAD, 0);
}

/* ---- launching ------------------------------------------------------------------------------- */

/* What parameters point to, for one call. */
typedef struct param_room {
    union {
        void *pointer;
        int32_t number;
        int64_t fault;
    } value[CALL_PARAMS];
    void *args[CALL_ARGS];
} param_room;

static void *find_param(const hl_kernel_state *state, const hl_cuda_param *param,
                        void *const *args, const hl_launch *launch, int i, param_room *room)
{
    const hl_cuda_calls *calls = state->impl;
    switch (param->kind) {
    case PARAM_VALUE: return calls->value + param->at;
    case PARAM_ARGS: memcpy(room->args, args, param->at * sizeof *args); return room->args;
    case PARAM_ARG: room->value[i].pointer = args[param->at]; break;
    case PARAM_SCRATCH:
        room->value[i].pointer = (unsigned char *)launch->scratch + param->at;
        break;
    case PARAM_NULL: room->value[i].pointer = NULL; break;
    case PARAM_UPLOAD: room->value[i].pointer = (void *)state->uploaded; break;
    case PARAM_CONTROL: room->value[i].pointer = launch->control; break;
    case PARAM_FAULT:
        room->value[i].fault = hl_control_fault(launch->plan, launch->node);
        break;
    case PARAM_IS_APPLY: room->value[i].number = launch->segment == HL_SEGMENT_APPLY; break;
    }
    return &room->value[i];
}

static hl_status run_call(const hl_kernel_state *state, const hl_cuda_call *call,
                          void *const *args, const hl_launch *launch, hl_stream *stream)
{
    const hl_cuda_calls *calls = state->impl;
    const hl_device_ops *ops = calls->device->ops;
    param_room room;
    void *params[CALL_PARAMS + 1];
    for (int i = 0; i < call->n_params; i++)
        params[i] = find_param(state, &calls->param[call->first_param + i], args, launch, i, &room);
    params[call->n_params] = NULL;
    switch (call->kind) {
    case CALL_KERNEL:
        return hl_cuda_launch(calls->device, call->kernel, &call->shape, stream, params);
    case CALL_COPY:
        if (call->bytes == 0 || room.value[0].pointer == room.value[1].pointer) return HL_OK;
        return ops->copy(calls->device, room.value[0].pointer, room.value[1].pointer, call->bytes,
                         HL_COPY_DEVICE_TO_DEVICE, stream);
    default:
        if (call->bytes == 0) return HL_OK;
        return ops->fill_zero(calls->device, room.value[0].pointer, call->bytes, stream);
    }
}

static bool is_aligned(const hl_cuda_calls *calls, const hl_cuda_call *call, void *const *args)
{
    for (int64_t i = call->first_param; i < call->first_param + call->n_params; i++) {
        const hl_cuda_param *param = &calls->param[i];
        if (param->kind == PARAM_ARG && (uintptr_t)args[param->at] % call->alignment) return false;
    }
    return true;
}

hl_status hl_cuda_calls_launch(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    const hl_cuda_calls *calls = state->impl;
    for (int64_t i = 0; i < calls->n_calls; i++) {
        const hl_cuda_call *call = &calls->call[i];
        if (call->alignment && !is_aligned(calls, call, args)) continue;
        HL_TRY(run_call(state, call, args, launch, stream));
        if (call->alignment) i++;
    }
    return HL_OK;
}

/* ---- shapes of launches ---------------------------------------------------------------------- */

enum { ELEMENT_THREADS = 256, TEAM_THREADS = 128, LONG_ROW = 1024, LONG_THREADS = 256 };
/* Blocks a multiprocessor: enough that one that waits for memory is replaced by another. */
enum { BUSY_BLOCKS = 16 };

hl_cuda_shape hl_cuda_shape_blocks(const hl_device *device, int64_t n_blocks, unsigned threads)
{
    int64_t most = (int64_t)hl_cuda_device_facts(device)->n_multiprocessors * BUSY_BLOCKS;
    if (n_blocks > most) n_blocks = most;
    if (n_blocks < 1) n_blocks = 1;
    return (hl_cuda_shape){{(unsigned)n_blocks, 1, 1}, {threads, 1, 1}, 0};
}

hl_cuda_shape hl_cuda_shape_elements(const hl_device *device, int64_t n)
{
    return hl_cuda_shape_blocks(device, (n + ELEMENT_THREADS - 1) / ELEMENT_THREADS,
                                ELEMENT_THREADS);
}

hl_cuda_shape hl_cuda_shape_teams(const hl_device *device, int64_t R, int64_t C, int *out_by_block)
{
    *out_by_block = C > LONG_ROW;
    if (*out_by_block) return hl_cuda_shape_blocks(device, R, LONG_THREADS);
    int lanes = 2;
    while (lanes < C && lanes < 32) lanes *= 2;
    if (lanes < 32) *out_by_block = lanes;
    int64_t n_teams = TEAM_THREADS / lanes;
    return hl_cuda_shape_blocks(device, (R + n_teams - 1) / n_teams, TEAM_THREADS);
}

/* ---- what queries ask ------------------------------------------------------------------------ */

const char *hl_cuda_suffix(hl_dtype dtype)
{
    switch (dtype) {
    case HL_DTYPE_F32: return "f32";
    case HL_DTYPE_BF16: return "bf16";
    case HL_DTYPE_F16: return "f16";
    default: return NULL;
    }
}

bool hl_cuda_is_dtype(const hl_graph *graph, const hl_node *node, int first, int last,
                      hl_dtype dtype, hl_reason *out_why_not)
{
    for (int i = first; i < last && i < node->n_in; i++) {
        hl_dtype got = hl_node_in_type(graph, node, i)->dtype;
        if (got == dtype) continue;
        hl_reason_set(out_why_not, "needs %s, got %s", hl_dtype_name(dtype), hl_dtype_name(got));
        return false;
    }
    return true;
}

bool hl_cuda_is_low_float(const hl_graph *graph, const hl_node *node, int first, int last,
                          hl_reason *out_why_not)
{
    hl_dtype dtype = hl_node_in_type(graph, node, first)->dtype;
    if (!hl_cuda_suffix(dtype)) {
        hl_reason_set(out_why_not, "needs float32, bfloat16 or float16, got %s",
                      hl_dtype_name(dtype));
        return false;
    }
    return hl_cuda_is_dtype(graph, node, first, last, dtype, out_why_not);
}
