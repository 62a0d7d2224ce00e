/* cuDNN's execution plans for a convolution: which, best first, and the workspace that each wants.
 */
#ifndef HL_KERNELS_CUDA_DNN_PLANS_H
#define HL_KERNELS_CUDA_DNN_PLANS_H

#include "kernels/cuda/dnn_conv.h"
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
    int n, n_compiled; /* n_compiled: of them, by the library for this convolution */
    hl_dnn_plan plan[HL_TUNED_ALGOS];
} hl_dnn_plans;

/* At least one plan, or HL_ERROR_CONFIG and the reason: the library has none, or tuning has found
 * that it may not be taken (refusals.h). all: as many as there is room for, else the first one that
 * there is. deterministic: of engines that give the same bits every run. The library
 * is asked once a device about convolutions of one description; what it answers serves all later
 * calls and lives as long as the device, since captures run what plans hold. */
hl_status hl_dnn_plans_find(hl_device *device, const hl_dnn_conv *conv, bool deterministic,
                            bool all, const hl_dnn_plans **out_plans, hl_reason *out_why_not);

#endif
