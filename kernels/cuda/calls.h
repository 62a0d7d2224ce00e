/* What a node does on a GPU, written down at plan time: kernels, copies and fills in order, each
 * with its parameters; where operands lie is left open until the launch.
 *
 * A family's prepare makes the list, and one launch serves every family. So a family's file holds
 * what is its own: which kernel, what shape of launch, which parameters in which order. The first
 * error is kept and hl_cuda_calls_end tells it, so that a list reads as a list:
 *
 *     hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, node);
 *     hl_cuda_call_kernel(&calls, "hl_cuda_softmax_f32", shape);
 *     hl_cuda_pass_in(&calls, 0);
 *     hl_cuda_pass_out(&calls, 0);
 *     HL_CUDA_PASS(&calls, int64_t, rows);
 *     return hl_cuda_calls_end(&calls, out_state);
 *
 * A list is launched within a capture as well as alone: it neither allocates nor waits.
 *
 * Rejected: a launch function per family, which is the same loop over parameters forty times. */
#ifndef HL_KERNELS_CUDA_CALLS_H
#define HL_KERNELS_CUDA_CALLS_H

#include "base/alloc.h"
#include "kernels/cuda/cuda.h"

typedef struct hl_cuda_call hl_cuda_call;
typedef struct hl_cuda_param hl_cuda_param;

/* On prepare's stack while a list is made; a kernel's state once it is ended. */
typedef struct hl_cuda_calls {
    hl_device *device;
    hl_status status; /* the first error */
    int32_t n_in, n_args;
    hl_cuda_call *call;
    hl_cuda_param *param;
    unsigned char *value; /* bytes of parameters */
    void *upload;         /* what the plan copies into device memory, or NULL */
    size_t upload_bytes;
    int64_t n_calls, n_params, n_bytes, cap_calls, cap_params, cap_bytes;
} hl_cuda_calls;

hl_cuda_calls hl_cuda_calls_begin(hl_device *device, const hl_graph *graph, hl_node_id node);
hl_status hl_cuda_calls_end(hl_cuda_calls *calls, hl_kernel_state *out_state);
/* hl_kernel's launch and release for every list. */
hl_status hl_cuda_calls_launch(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream);
void hl_cuda_calls_release(hl_kernel_state *state);

#define HL_CUDA_KERNEL(OP, text, query_fn, prepare_fn)                                             \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text,                                                                         \
     .query = query_fn,                                                                            \
     .prepare = prepare_fn,                                                                        \
     .launch = hl_cuda_calls_launch,                                                               \
     .release = hl_cuda_calls_release}
/* One that stands in a row with others of its kind: together_fn makes a list of all of them. */
#define HL_CUDA_KERNEL_TOGETHER(OP, text, query_fn, prepare_fn, together_fn)                       \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text,                                                                         \
     .query = query_fn,                                                                            \
     .prepare = prepare_fn,                                                                        \
     .prepare_together = together_fn,                                                              \
     .launch = hl_cuda_calls_launch,                                                               \
     .release = hl_cuda_calls_release}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Where a call finds memory: an operand's beginning, or so many bytes into scratch. */
typedef struct hl_cuda_place {
    enum { HL_CUDA_IN, HL_CUDA_OUT, HL_CUDA_SCRATCH } of;
    size_t at; /* number of the operand; offset in scratch */
} hl_cuda_place;

/* A kernel by name; hl_cuda_pass_* that follow are its parameters in order. */
void hl_cuda_call_kernel(hl_cuda_calls *calls, const char *name, hl_cuda_shape shape);
/* For n nodes of one op: a kernel with a row of blocks for each, as long as `most` elements, the
 * largest one's, ask for. Its first parameters are the operands of all, parts (by value) and n. */
void hl_cuda_call_together(hl_cuda_calls *calls, const char *name, int32_t n, int64_t most,
                           const void *parts, size_t bytes);
/* Nothing where both are the same memory (in place) or bytes is 0. */
void hl_cuda_call_copy(hl_cuda_calls *calls, hl_cuda_place to, hl_cuda_place from, size_t bytes);
void hl_cuda_call_zero(hl_cuda_calls *calls, hl_cuda_place at, size_t bytes);

/* Where the last call's operands all lie at multiples of so many bytes it is made, else the next
 * one: for wide words, since a plan may put an operand at any element of a larger block. */
void hl_cuda_call_aligned(hl_cuda_calls *calls, size_t bytes);

/* ---- parameters ------------------------------------------------------------------------------ */

/* By value, copied now. */
void hl_cuda_pass(hl_cuda_calls *calls, const void *value, size_t bytes);
#define HL_CUDA_PASS(calls, type, value) hl_cuda_pass(calls, &(const type){value}, sizeof(type))
/* Pointers. An operand that the node has not is passed as NULL. */
void hl_cuda_pass_place(hl_cuda_calls *calls, hl_cuda_place place);
void hl_cuda_pass_in(hl_cuda_calls *calls, int input);
void hl_cuda_pass_out(hl_cuda_calls *calls, int output);
void hl_cuda_pass_scratch(hl_cuda_calls *calls, size_t offset);
void hl_cuda_pass_null(hl_cuda_calls *calls);
/* All operands, inputs then outputs, as one array of pointers by value (hl_cuda_operands). */
void hl_cuda_pass_operands(hl_cuda_calls *calls);
/* A copy of this in device memory, which the plan makes (hl_kernel_state); one a list. */
void hl_cuda_pass_upload(hl_cuda_calls *calls, const void *data, size_t bytes);
/* Of hl_launch: `hl_control *`, the error word of its node as int64_t, and 1 in segment apply, as
 * int. */
void hl_cuda_pass_control(hl_cuda_calls *calls);
void hl_cuda_pass_fault(hl_cuda_calls *calls);
void hl_cuda_pass_is_apply(hl_cuda_calls *calls);

/* ---- shapes of launches ---------------------------------------------------------------------- */

/* A thread an element and more, 256 threads a block. */
hl_cuda_shape hl_cuda_shape_elements(const hl_device *device, int64_t n);
/* Teams of fold.h on rows (R,C): some lanes, a warp or a block, by the row's length. Threads and
 * by_block come from C alone, so the bits do not depend on the GPU. */
hl_cuda_shape hl_cuda_shape_teams(const hl_device *device, int64_t R, int64_t C, int *out_by_block);
/* n_blocks, but no more than keep the device busy; the kernel goes on by its grid. */
hl_cuda_shape hl_cuda_shape_blocks(const hl_device *device, int64_t n_blocks, unsigned threads);

/* ---- what queries ask ------------------------------------------------------------------------ */

/* "f32", "bf16", "f16" in kernels' names; NULL: no such kernels. */
const char *hl_cuda_suffix(hl_dtype dtype);
/* Inputs [first, last) are float32, bfloat16 or float16, and all the same. */
bool hl_cuda_is_low_float(const hl_graph *graph, const hl_node *node, int first, int last,
                          hl_reason *out_why_not);
/* Inputs [first, last) are of this dtype; the reason says which is not. */
bool hl_cuda_is_dtype(const hl_graph *graph, const hl_node *node, int first, int last,
                      hl_dtype dtype, hl_reason *out_why_not);

#endif
