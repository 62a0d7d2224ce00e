/* Lists of calls: made by prepare, run by every launch. */
#include "kernels/cuda/calls.h"

#include <stdio.h>
#include <string.h>

typedef enum hl_cuda_call_kind { CALL_KERNEL, CALL_COPY, CALL_ZERO } hl_cuda_call_kind;

struct hl_cuda_call {
    hl_cuda_call_kind kind;
    CUfunction kernel;
    hl_cuda_shape shape;
    int64_t first_byte;    /* KERNEL: of its parameters */
    size_t bytes;          /* KERNEL: of its parameters; COPY, ZERO: of what */
    int32_t n_words;       /* at their beginning */
    hl_cuda_word to, from; /* COPY; ZERO: to */
    size_t alignment;      /* of its operands, else the next call is made instead; 0: any */
};

/* ---- making ---------------------------------------------------------------------------------- */

hl_cuda_calls hl_cuda_calls_begin(hl_device *device, const hl_graph *graph, hl_node_id id)
{
    hl_cuda_calls calls = {.device = device};
    hl_cuda_calls_next(&calls, graph, id);
    return calls;
}

void hl_cuda_calls_next(hl_cuda_calls *calls, const hl_graph *graph, hl_node_id id)
{
    calls->first_arg += calls->n_args;
    calls->node = id;
    calls->n_in = graph->nodes[id].n_in;
    calls->n_args = calls->n_in + graph->nodes[id].n_out;
}

void hl_cuda_calls_drop(hl_cuda_calls *calls)
{
    hl_free(calls->upload);
    hl_free(calls->call);
    hl_free(calls->params);
}

hl_status hl_cuda_calls_end(hl_cuda_calls *calls, hl_kernel_state *out_state)
{
    void *impl = NULL;
    if (calls->status == HL_OK) calls->status = hl_alloc(sizeof *calls, &impl);
    if (calls->status != HL_OK) {
        hl_cuda_calls_drop(calls);
        return calls->status;
    }
    memcpy(impl, calls, sizeof *calls);
    out_state->impl = impl;
    out_state->upload = calls->upload;
    out_state->upload_bytes = (size_t)calls->n_upload;
    return HL_OK;
}

void hl_cuda_calls_release(hl_kernel_state *state)
{
    if (state->impl) hl_cuda_calls_drop(state->impl);
    hl_free(state->impl);
}

static hl_cuda_call *add_call(hl_cuda_calls *calls, hl_cuda_call_kind kind)
{
    if (calls->status == HL_OK)
        calls->status = hl_alloc_grow((void **)&calls->call, &calls->cap_calls, calls->n_calls + 1,
                                      sizeof *calls->call);
    if (calls->status != HL_OK) return NULL;
    hl_cuda_call *call = &calls->call[calls->n_calls++];
    *call = (hl_cuda_call){.kind = kind};
    if (calls->steps && kind != CALL_KERNEL) hl_cuda_steps_add(calls->steps, NULL, NULL, 0);
    return call;
}

static hl_status add_params(hl_cuda_calls *calls, const void *params, size_t bytes)
{
    if (bytes > HL_CUDA_PARAM_BYTES)
        return hl_status_set(HL_ERROR_INTERNAL,
                             "cuda: a kernel must have at most %d bytes of parameters, got %zu",
                             HL_CUDA_PARAM_BYTES, bytes);
    int64_t room = hl_round_up((int64_t)bytes, HL_CUDA_PARAM_ALIGN);
    HL_TRY(hl_alloc_grow((void **)&calls->params, &calls->cap_bytes, calls->n_bytes + room, 1));
    memcpy(calls->params + calls->n_bytes, params, bytes);
    calls->n_bytes += room;
    return HL_OK;
}

hl_cuda_calls hl_cuda_calls_begin_steps(hl_device *device, hl_cuda_steps *steps, size_t head_bytes)
{
    static const char head[HL_CUDA_PARAM_BYTES];
    hl_cuda_calls calls = {.device = device, .steps = steps};
    calls.status = add_params(&calls, head, head_bytes);
    return calls;
}

void hl_cuda_calls_join(hl_cuda_calls *calls, const char *kernel, hl_cuda_shape shape,
                        const void *head, size_t bytes)
{
    if (calls->status == HL_OK) memcpy(calls->params, head, bytes);
    if (calls->status == HL_OK)
        calls->status =
            hl_cuda_kernel_get(calls->device, kernel, shape.shared_bytes, &calls->whole);
    calls->whole_shape = shape;
    calls->steps = NULL;
}

void hl_cuda_call_kernel(hl_cuda_calls *calls, const char *kind, const char *variant,
                         hl_cuda_shape shape, const void *params, size_t bytes, size_t at_bytes)
{
    char name[96];
    hl_cuda_call *call = add_call(calls, CALL_KERNEL);
    if (!call) return;
    snprintf(name, sizeof name, "%s%s%s", kind, variant ? "_" : "", variant ? variant : "");
    call->shape = shape;
    call->first_byte = calls->n_bytes, call->bytes = bytes;
    call->n_words = (int32_t)(at_bytes / sizeof(hl_cuda_word));
    calls->status = add_params(calls, params, bytes);
    if (calls->status != HL_OK) return;
    if (calls->steps)
        hl_cuda_steps_add(calls->steps, name, &shape, call->first_byte);
    else
        calls->status = hl_cuda_kernel_get(calls->device, name, shape.shared_bytes, &call->kernel);
}

void hl_cuda_call_copy(hl_cuda_calls *calls, hl_cuda_word to, hl_cuda_word from, size_t bytes)
{
    hl_cuda_call *call = add_call(calls, CALL_COPY);
    if (call) call->to = to, call->from = from, call->bytes = bytes;
}

void hl_cuda_call_zero(hl_cuda_calls *calls, hl_cuda_word at, size_t bytes)
{
    hl_cuda_call *call = add_call(calls, CALL_ZERO);
    if (call) call->to = at, call->bytes = bytes;
}

void hl_cuda_call_aligned(hl_cuda_calls *calls, size_t bytes)
{
    if (calls->status == HL_OK) calls->call[calls->n_calls - 1].alignment = bytes;
}

hl_cuda_word hl_cuda_upload(hl_cuda_calls *calls, const void *data, size_t bytes)
{
    int64_t at = hl_round_up(calls->n_upload, HL_ALIGN);
    if (calls->status == HL_OK)
        calls->status =
            hl_alloc_grow((void **)&calls->upload, &calls->cap_upload, at + (int64_t)bytes, 1);
    if (calls->status == HL_OK) {
        memset(calls->upload + calls->n_upload, 0, (size_t)(at - calls->n_upload));
        memcpy(calls->upload + at, data, bytes);
        calls->n_upload = at + (int64_t)bytes;
    }
    return hl_cuda_word_make(HL_CUDA_WORD_UPLOAD, (size_t)at);
}

/* ---- launching ------------------------------------------------------------------------------- */

static hl_cuda_word_kind kind_of(hl_cuda_word word)
{
    return (hl_cuda_word_kind)(word.bits >> 56);
}
static size_t place_of(hl_cuda_word word)
{
    return (size_t)(word.bits & (((uint64_t)1 << 56) - 1));
}

/* The value that the launch puts into a word. */
static uint64_t find_word(const hl_kernel_state *state, hl_cuda_word word, void *const *args,
                          const hl_launch *launch)
{
    switch (kind_of(word)) {
    case HL_CUDA_WORD_NONE: return 0;
    case HL_CUDA_WORD_ARG: return (uintptr_t)args[place_of(word)];
    case HL_CUDA_WORD_SCRATCH: return (uintptr_t)launch->scratch + place_of(word);
    case HL_CUDA_WORD_UPLOAD: return (uintptr_t)state->uploaded + place_of(word);
    case HL_CUDA_WORD_CONTROL: return (uintptr_t)launch->control;
    case HL_CUDA_WORD_FAULT:
        return (uint64_t)hl_control_fault(launch->plan, (int32_t)place_of(word));
    }
    return 0;
}

typedef union kernel_params {
    uint64_t word[HL_CUDA_PARAM_BYTES / sizeof(uint64_t)];
    hl_cuda_word known[HL_CUDA_PARAM_BYTES / sizeof(hl_cuda_word)];
} kernel_params;

/* Words from the first-th on. */
static void find_words(const hl_kernel_state *state, int64_t first, int32_t n, void *const *args,
                       const hl_launch *launch, kernel_params *params)
{
    for (int64_t w = first; w < first + n; w++)
        params->word[w] = find_word(state, params->known[w], args, launch);
}

static hl_status run_kernel(const hl_kernel_state *state, const hl_cuda_call *call,
                            void *const *args, const hl_launch *launch, hl_stream *stream)
{
    const hl_cuda_calls *calls = state->impl;
    kernel_params params;
    memcpy(&params, calls->params + call->first_byte, call->bytes);
    find_words(state, 0, call->n_words, args, launch, &params);
    return hl_cuda_launch(calls->device, call->kernel, &call->shape, stream,
                          (void *[]){&params, NULL});
}

static hl_status run_whole(const hl_kernel_state *state, void *const *args, const hl_launch *launch,
                           hl_stream *stream)
{
    const hl_cuda_calls *calls = state->impl;
    kernel_params params;
    memcpy(&params, calls->params, (size_t)calls->n_bytes);
    for (int64_t i = 0; i < calls->n_calls; i++) {
        const hl_cuda_call *call = &calls->call[i];
        find_words(state, call->first_byte / (int64_t)sizeof(uint64_t), call->n_words, args, launch,
                   &params);
    }
    return hl_cuda_launch(calls->device, calls->whole, &calls->whole_shape, stream,
                          (void *[]){&params, NULL});
}

static hl_status run_call(const hl_kernel_state *state, const hl_cuda_call *call, void *const *args,
                          const hl_launch *launch, hl_stream *stream)
{
    const hl_cuda_calls *calls = state->impl;
    const hl_device_ops *ops = calls->device->ops;
    if (call->kind == CALL_KERNEL) return run_kernel(state, call, args, launch, stream);
    void *to = (void *)(uintptr_t)find_word(state, call->to, args, launch);
    if (call->bytes == 0) return HL_OK;
    if (call->kind == CALL_ZERO) return ops->fill_zero(calls->device, to, call->bytes, stream);
    const void *from = (const void *)(uintptr_t)find_word(state, call->from, args, launch);
    if (to == from) return HL_OK;
    return ops->copy(calls->device, to, from, call->bytes, HL_COPY_DEVICE_TO_DEVICE, stream);
}

static bool is_aligned(const hl_cuda_calls *calls, const hl_cuda_call *call, void *const *args)
{
    for (int32_t w = 0; w < call->n_words; w++) {
        hl_cuda_word word;
        memcpy(&word, calls->params + call->first_byte + (size_t)w * sizeof word, sizeof word);
        if (kind_of(word) == HL_CUDA_WORD_ARG && (uintptr_t)args[place_of(word)] % call->alignment)
            return false;
    }
    return true;
}

hl_status hl_cuda_calls_launch(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream)
{
    const hl_cuda_calls *calls = state->impl;
    if (calls->whole) return run_whole(state, args, launch, stream);
    for (int64_t i = 0; i < calls->n_calls; i++) {
        const hl_cuda_call *call = &calls->call[i];
        if (call->alignment && !is_aligned(calls, call, args)) continue;
        HL_TRY(run_call(state, call, args, launch, stream));
        if (call->alignment) i++;
    }
    return HL_OK;
}

/* ---- shapes of launches ---------------------------------------------------------------------- */

/* Rows that are longer than LONG_ROW go by a block, others by cooperative groups of a smaller one.
 */
enum { LONG_ROW = 1024, SMALL_THREADS = 128 };
/* Blocks per multiprocessor: enough to hide the latency of memory. */
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
    const int threads = HL_CUDA_ELEMENT_THREADS;
    return hl_cuda_shape_blocks(device, (n + threads - 1) / threads, threads);
}

hl_cuda_shape hl_cuda_shape_nodes(const hl_device *device, int64_t most, int32_t n)
{
    hl_cuda_shape shape = hl_cuda_shape_elements(device, most);
    shape.grid[1] = (unsigned)n;
    return shape;
}

hl_cuda_shape hl_cuda_shape_coop_groups(const hl_device *device, int64_t R, int64_t C,
                                        int *out_by_block)
{
    *out_by_block = C > LONG_ROW;
    if (*out_by_block) return hl_cuda_shape_blocks(device, R, HL_CUDA_COOP_THREADS);
    int lanes = 2;
    while (lanes < C && lanes < 32) lanes *= 2;
    if (lanes < 32) *out_by_block = lanes;
    int64_t n_coop_groups = SMALL_THREADS / lanes;
    return hl_cuda_shape_blocks(device, (R + n_coop_groups - 1) / n_coop_groups, SMALL_THREADS);
}

int hl_cuda_row_keep(int64_t C, int by_block)
{
    int64_t size = by_block == 1 ? HL_CUDA_COOP_THREADS : by_block == 0 ? 32 : by_block;
    return C <= size ? 1 : C <= 4 * size ? 4 : 32;
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

bool hl_cuda_is_same_float(const hl_graph *graph, const hl_node *node, int first, int last,
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
