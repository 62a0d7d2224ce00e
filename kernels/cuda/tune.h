/* Autotuning of nodes that a library computes by one of several algorithms: once, before the first
 * launch (hl_kernel.tune). What is a library's own stands in hl_tuned_ops. */
#ifndef HL_KERNELS_CUDA_TUNE_H
#define HL_KERNELS_CUDA_TUNE_H

#include "backend/backend.h"
#include "kernels/cuda/refusals.h"

enum { HL_TUNED_OUTS = 3, HL_TUNED_ALGOS = 8, HL_TUNED_ALGO_TEXT = 144 };

typedef struct hl_tuned hl_tuned;
typedef struct hl_tuned_place {
    void *const *args;
    const hl_launch *launch;
    hl_stream *stream;
} hl_tuned_place;

typedef struct hl_tuned_ops {
    /* Queues the problem by one of its algorithms, or without the programs (bare). is_nan: so that
     * its result is NaN before any activation. out_refused: the library did not take it. */
    hl_status (*launch)(const hl_tuned *tuned, const hl_tuned_place *place, bool bare, int which,
                        bool is_nan, bool *out_refused);
    /* What an algorithm is called in the autotune cache: no spaces. */
    void (*name)(const hl_tuned *tuned, int which, char out_text[HL_TUNED_ALGO_TEXT]);
    /* The problem without the node's programs, in the node's scratch; those of its algorithms that
     * fit are a bit each. HL_ERROR_CONFIG: the library has none. End follows on every path. */
    hl_status (*begin_bare)(hl_tuned *tuned, unsigned *out_algos);
    void (*end_bare)(hl_tuned *tuned);
} hl_tuned_ops;

/* The first member of such a kernel's state. */
struct hl_tuned {
    const hl_tuned_ops *ops;
    hl_device *device;
    hl_problem problem;
    hl_dtype result;
    int n_in, n_out;
    int64_t out_bytes[HL_TUNED_OUTS]; /* in the form that it has */
    bool benchmark, deterministic;
    int n_algos, chosen;
    float us; /* of a launch, as measured by this state; 0: it was not */
    /* hotloop's own kernel for the same node, where it may be the faster one; NULL: not compared */
    const hl_kernel *own;
    hl_kernel_state own_state;
};

/* All that the node tells: the library's own fields are the caller's to set. */
void hl_tuned_init(hl_device *device, const hl_graph *graph, hl_node_id node,
                   const hl_tuned_ops *ops, hl_tuned *out_tuned);
/* Prepares `own`, if it computes the node and the plan is autotuned, to be compared with. */
hl_status hl_tuned_compare(hl_tuned *tuned, const hl_graph *graph, hl_node_id node,
                           const hl_kernel *own);
void hl_tuned_deinit(hl_tuned *tuned);
/* The scratch that comparing bits takes; 0: nobody will. */
size_t hl_tuned_scratch_bytes(const hl_tuned *tuned);
/* hl_kernel's functions. */
hl_status hl_tuned_tune(const hl_kernel_state *state, void *const *args, const hl_launch *launch,
                        hl_stream *stream);
void hl_tuned_describe(const hl_kernel_state *state, char *out_text, size_t bytes);

#endif
