/* cuDNN's execution plans for a problem, a convolution or attention: which, best first, the
 * workspace that each wants; and how one runs. */
#ifndef HL_KERNELS_CUDA_DNN_PLANS_H
#define HL_KERNELS_CUDA_DNN_PLANS_H

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/tune.h"

/* Workspace: what transforms of large images and split sums of weight gradients may take. */
enum { HL_DNN_WORKSPACE = 64 << 20 };

enum { HL_DNN_PLAN_NAME = 48 };
typedef struct hl_dnn_plan {
    cudnnBackendDescriptor_t desc, config;
    size_t bytes;                /* of workspace */
    char name[HL_DNN_PLAN_NAME]; /* "engine34-9f3b2c0d11aa5502": the engine, its knobs' hash */
} hl_dnn_plan;
/* Best first, as the heuristics see it. */
typedef struct hl_dnn_plans {
    int n, n_compiled; /* n_compiled: of them, by the library for this problem */
    hl_dnn_plan plan[HL_TUNED_ALGOS];
} hl_dnn_plans;

/* What the library is asked about. The problem's text is all that it is told, but for whether it is
 * to repeat its bits. */
typedef struct hl_dnn_question {
    hl_problem problem;
    const void *of;
    /* The operation graph, finalized; NULL after an error (descs->status). */
    cudnnBackendDescriptor_t (*build)(hl_cudnn_descs *descs, const void *of);
    bool is_exact; /* operands are float32, and are not rounded */
} hl_dnn_question;

/* At least one plan, or HL_ERROR_CONFIG and the reason: the library has none, or tuning has found
 * that it may not be taken (refusals.h). all: as many as there is room for, else the first one that
 * there is. deterministic: of engines that give the same bits every run. The library
 * is asked once a device about problems of one text; what it answers serves all later
 * calls and lives as long as the device, since captures run what plans hold. */
hl_status hl_dnn_plans_find(hl_device *device, const hl_dnn_question *question, bool deterministic,
                            bool all, const hl_dnn_plans **out_plans, hl_reason *out_why_not);
size_t hl_dnn_plans_workspace(const hl_dnn_plans *plans); /* of the one that wants most */

/* Where tensors lie, by their unique ids. */
enum { HL_DNN_PLACES = 16 };
typedef struct hl_dnn_places {
    int n;
    int64_t id[HL_DNN_PLACES];
    void *at[HL_DNN_PLACES];
} hl_dnn_places;
static inline void hl_dnn_place(hl_dnn_places *places, int64_t id, void *at)
{
    places->id[places->n] = id;
    places->at[places->n++] = at;
}
/* Queues a plan. out_refused: the library did not take it. */
hl_status hl_dnn_plan_run(hl_device *device, const hl_dnn_plan *plan, const hl_dnn_places *places,
                          void *workspace, hl_stream *stream, bool *out_refused);

#endif
