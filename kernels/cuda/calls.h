/* The calls of a node on a GPU, listed at plan time: kernels, copies and fills in order, each with
 * its parameters; where operands lie is left open until the launch.
 *
 * A family's prepare makes the list, and one launch serves every family. So a family's file holds
 * what is its own: which kernel, what shape of launch, which parameters. The first error is kept
 * and hl_cuda_calls_end returns it, so that a list reads as a list:
 *
 *     hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, node);
 *     HL_CUDA_CALL(&calls, softmax, "f32", shape, .at.x = hl_cuda_in(&calls, 0),
 *                  .at.y = hl_cuda_out(&calls, 0), .R = rows, .C = columns);
 *     return hl_cuda_calls_end(&calls, out_state);
 *
 * A list is launched within a capture as well as alone: it neither allocates nor waits.
 *
 * Rejected: a launch function per family, which is the same loop over addresses forty times. */
#ifndef HL_KERNELS_CUDA_CALLS_H
#define HL_KERNELS_CUDA_CALLS_H

#include "base/alloc.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/params.h"

typedef struct hl_cuda_call hl_cuda_call;
typedef struct hl_cuda_steps hl_cuda_steps;

/* On prepare's stack while a list is made; a kernel's state once it is ended. */
typedef struct hl_cuda_calls {
    hl_device *device;
    hl_status status; /* the first error */
    hl_node_id node;  /* whose calls are being listed, */
    int32_t n_in;
    int32_t first_arg, n_args; /* and what of the launch's args are its own */
    hl_cuda_call *call;
    unsigned char *params; /* of all calls */
    unsigned char *upload; /* what the plan copies into device memory, or NULL */
    int64_t n_calls, n_bytes, n_upload, cap_calls, cap_bytes, cap_upload;
    /* One launch that makes all calls (hl_cuda_calls_join); NULL: each is a launch of its own. */
    CUfunction whole;
    hl_cuda_shape whole_shape;
    hl_cuda_steps
        *steps; /* who takes the calls of such a list; NULL: no such list, or it is ended */
} hl_cuda_calls;

hl_cuda_calls hl_cuda_calls_begin(hl_device *device, const hl_graph *graph, hl_node_id node);
/* What follows are the calls of this node, whose args stand behind those of the one before. */
void hl_cuda_calls_next(hl_cuda_calls *calls, const hl_graph *graph, hl_node_id node);
hl_status hl_cuda_calls_end(hl_cuda_calls *calls, hl_kernel_state *out_state);
/* Instead: gives the list up. */
void hl_cuda_calls_drop(hl_cuda_calls *calls);
/* hl_kernel's launch and release for every list. */
hl_status hl_cuda_calls_launch(const hl_kernel_state *state, void *const *args,
                               const hl_launch *launch, hl_stream *stream);
void hl_cuda_calls_release(hl_kernel_state *state);

#define HL_CUDA_KERNEL(OP, text, query_fn, prepare_fn)                                             \
    HL_CUDA_KERNEL_FUSING(OP, text, query_fn, prepare_fn, NULL)
/* A kernel that takes fusions (hl_kernel.fusions). */
#define HL_CUDA_KERNEL_FUSING(OP, text, query_fn, prepare_fn, fusion_texts)                        \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text,                                                                         \
     .fusions = fusion_texts,                                                                      \
     .query = query_fn,                                                                            \
     .prepare = prepare_fn,                                                                        \
     .launch = hl_cuda_calls_launch,                                                               \
     .release = hl_cuda_calls_release}
/* A kernel that can be fused horizontally: horizontal_fn makes one list for all of its nodes. */
#define HL_CUDA_KERNEL_HORIZONTAL(OP, text, query_fn, prepare_fn, horizontal_fn)                   \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text,                                                                         \
     .query = query_fn,                                                                            \
     .prepare = prepare_fn,                                                                        \
     .prepare_horizontal = horizontal_fn,                                                          \
     .launch = hl_cuda_calls_launch,                                                               \
     .release = hl_cuda_calls_release}

/* ---- one launch for a list ------------------------------------------------------------------- */

/* A list whose calls are steps of one kernel (sequence.h), without a node yet. That kernel takes a
 * head of so many bytes, then the parameters of all calls, which begin at multiples of
 * HL_CUDA_PARAM_ALIGN. */
enum { HL_CUDA_PARAM_BYTES = 4096 /* of a kernel, before CUDA 12.1 */, HL_CUDA_PARAM_ALIGN = 16 };
hl_cuda_calls hl_cuda_calls_begin_steps(hl_device *device, hl_cuda_steps *steps, size_t head_bytes);
/* Each call is handed on: which kernel it would be, how launched, where its parameters begin.
 * kernel NULL: it is no kernel. */
void hl_cuda_steps_add(hl_cuda_steps *steps, const char *kernel, const hl_cuda_shape *shape,
                       int64_t first_byte);
/* Before the list is ended: the kernel's name, and its head. */
void hl_cuda_calls_join(hl_cuda_calls *calls, const char *kernel, hl_cuda_shape shape,
                        const void *head, size_t bytes);

/* hl_kernel's functions for sequences, and the calls of nodes in them: what the prepare of their
 * kernels lists. */
bool hl_cuda_is_sequence(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                         int32_t n);
hl_status hl_cuda_prepare_sequence(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                                   int32_t n, hl_kernel_state *out_state);
void hl_cuda_list_loss(hl_cuda_calls *calls, const hl_graph *graph, hl_node_id id);
void hl_cuda_list_control(hl_cuda_calls *calls, const hl_graph *graph, hl_node_id id);
/* A kernel whose nodes may be steps of a sequence. */
#define HL_CUDA_KERNEL_IN_SEQUENCE(OP, text, query_fn, prepare_fn)                                 \
    {.op = HL_OP_##OP,                                                                             \
     .name = "cuda." text,                                                                         \
     .query = query_fn,                                                                            \
     .prepare = prepare_fn,                                                                        \
     .prepare_sequence = hl_cuda_prepare_sequence,                                                 \
     .is_sequence = hl_cuda_is_sequence,                                                           \
     .launch = hl_cuda_calls_launch,                                                               \
     .release = hl_cuda_calls_release}

/* ---- words ----------------------------------------------------------------------------------- */

/* What a launch puts into a word of a kernel's parameters; without one, NULL. */
typedef enum hl_cuda_word_kind {
    HL_CUDA_WORD_NONE,
    HL_CUDA_WORD_ARG,     /* args[at] of hl_kernel's launch */
    HL_CUDA_WORD_SCRATCH, /* so many bytes into scratch */
    HL_CUDA_WORD_UPLOAD,  /* so many bytes into what was uploaded */
    HL_CUDA_WORD_CONTROL, /* hl_launch's control block */
    HL_CUDA_WORD_FAULT    /* the error word of this node */
} hl_cuda_word_kind;

static inline hl_cuda_word hl_cuda_word_make(hl_cuda_word_kind kind, size_t at)
{
    return (hl_cuda_word){(uint64_t)kind << 56 | at};
}
static inline hl_cuda_word hl_cuda_arg(int number)
{
    return hl_cuda_word_make(HL_CUDA_WORD_ARG, (size_t)number);
}
/* Of the node: its inputs in order, then its outputs. */
static inline hl_cuda_word hl_cuda_operand(const hl_cuda_calls *calls, int operand)
{
    return hl_cuda_arg(calls->first_arg + operand);
}
/* NULL where the node has no such input. */
static inline hl_cuda_word hl_cuda_in(const hl_cuda_calls *calls, int input)
{
    return input < calls->n_in ? hl_cuda_operand(calls, input) : (hl_cuda_word){0};
}
static inline hl_cuda_word hl_cuda_out(const hl_cuda_calls *calls, int output)
{
    return hl_cuda_operand(calls, calls->n_in + output);
}
static inline hl_cuda_word hl_cuda_scratch(size_t offset)
{
    return hl_cuda_word_make(HL_CUDA_WORD_SCRATCH, offset);
}
static inline hl_cuda_word hl_cuda_control_block(void)
{
    return hl_cuda_word_make(HL_CUDA_WORD_CONTROL, 0);
}
static inline hl_cuda_word hl_cuda_fault_word(const hl_cuda_calls *calls)
{
    return hl_cuda_word_make(HL_CUDA_WORD_FAULT, (size_t)calls->node);
}
/* A copy of this in device memory, which the plan makes (hl_kernel_state). */
hl_cuda_word hl_cuda_upload(hl_cuda_calls *calls, const void *data, size_t bytes);

/* ---- calls ----------------------------------------------------------------------------------- */

/* The kernel of a kind by its parameters: members of hl_cuda_<kind>_params as an initializer has
 * them, or a pointer to one. variant: what stands behind the kind in the kernel's name; NULL:
 * nothing. */
#define HL_CUDA_CALL(calls, kind, variant, shape, ...)                                             \
    HL_CUDA_CALL_WITH(calls, kind, variant, shape, &(const hl_cuda_##kind##_params){__VA_ARGS__})
#define HL_CUDA_CALL_WITH(calls, kind, variant, shape, ...)                                        \
    hl_cuda_call_kernel(                                                                           \
        calls, "hl_cuda_" #kind, variant, shape, (const hl_cuda_##kind##_params *){__VA_ARGS__},   \
        sizeof(hl_cuda_##kind##_params), sizeof(((hl_cuda_##kind##_params *)0)->at))
/* at_bytes: of the words at the beginning of the parameters. */
void hl_cuda_call_kernel(hl_cuda_calls *calls, const char *kind, const char *variant,
                         hl_cuda_shape shape, const void *params, size_t bytes, size_t at_bytes);
/* Nothing where both are the same memory (in place) or bytes is 0. */
void hl_cuda_call_copy(hl_cuda_calls *calls, hl_cuda_word to, hl_cuda_word from, size_t bytes);
void hl_cuda_call_zero(hl_cuda_calls *calls, hl_cuda_word at, size_t bytes);

/* The last call is made where all its operands lie at multiples of so many bytes, else the next one
 * instead: for wide words, since a plan may put an operand at any element of a larger block. */
void hl_cuda_call_aligned(hl_cuda_calls *calls, size_t bytes);

/* ---- shapes of launches ---------------------------------------------------------------------- */

/* A thread per element, HL_CUDA_ELEMENT_THREADS a block, in at most as many blocks as keep the
 * device busy: threads then take several elements (HL_FOR_GRID). */
hl_cuda_shape hl_cuda_shape_elements(const hl_device *device, int64_t n);
/* A row of such blocks for each of n nodes, of which the largest has `most` elements. */
hl_cuda_shape hl_cuda_shape_nodes(const hl_device *device, int64_t most, int32_t n);
/* Cooperative groups of fold.h on rows (R,C): some lanes, a warp or a block, by the row's length.
 * Threads and by_block come from C alone, so the bits do not depend on the GPU. */
hl_cuda_shape hl_cuda_shape_coop_groups(const hl_device *device, int64_t R, int64_t C,
                                        int *out_by_block);
/* Which of HL_CUDA_ROW_KEEPS: the least that is a row of C for each member of such a cooperative
 * group, else the largest. */
int hl_cuda_row_keep(int64_t C, int by_block);
/* n_blocks, but at most as many as keep the device busy: blocks then take several shares, by steps
 * of the grid. */
hl_cuda_shape hl_cuda_shape_blocks(const hl_device *device, int64_t n_blocks, unsigned threads);

/* ---- what queries ask ------------------------------------------------------------------------ */

/* "f32", "bf16", "f16" in kernels' names; NULL: no such kernels. */
const char *hl_cuda_suffix(hl_dtype dtype);
/* Inputs [first, last) are float32, bfloat16 or float16, and all the same. */
bool hl_cuda_is_same_float(const hl_graph *graph, const hl_node *node, int first, int last,
                           hl_reason *out_why_not);
/* Inputs [first, last) are of this dtype; the reason says which is not. */
bool hl_cuda_is_dtype(const hl_graph *graph, const hl_node *node, int first, int last,
                      hl_dtype dtype, hl_reason *out_why_not);

#endif
