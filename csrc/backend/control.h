/* Control block: the state of a run that kernels read and write, in device memory, so that no step waits for the host.
 *
 * The same layout everywhere. CONTROL_BEGIN, CONTROL_MICRO and CONTROL_APPLY move it on; guarded kernels do nothing
 * when hl_control_blocks says so; random kernels take their counter from it. The host reads it between steps and
 * writes it only while nothing runs. */
#ifndef HL_BACKEND_CONTROL_H
#define HL_BACKEND_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

enum { HL_CONTROL_SCALARS = 32, HL_CONTROL_RING = 256 };

typedef enum hl_nan_mode { HL_NAN_STOP, HL_NAN_SKIP } hl_nan_mode;

typedef struct hl_control_log {
    int64_t step; /* attempted */
    double loss, grad_norm, lr;
    int64_t applied; /* 0 or 1 */
} hl_control_log;

typedef struct hl_control {
    int64_t attempted; /* steps begun */
    int64_t applied;   /* steps whose update took place */
    int64_t skipped;
    int64_t micro_row; /* first sample of the current micro-batch in its window */
    int64_t n_micro;   /* micro-batches done in the window */
    int32_t apply;     /* of the current step, valid from CONTROL_APPLY on */
    int32_t window_ok; /* no micro-batch of the window had a non-finite loss */
    int32_t stopped;   /* latched: no later step changes anything */
    int32_t nan_mode;
    int64_t stopped_at; /* attempted step that stopped the run */
    double loss;        /* of the last micro-batch */
    double grad_norm;   /* of the last step, before clipping */
    double clip;        /* norm to clip to; 0: none */
    double loss_scale;  /* 1 when precision is not fp16 */
    int64_t good_steps; /* since the scale last changed */
    int64_t error_code; /* 0, or 1 + the node whose index was out of range (first one wins) */
    int64_t error_row;
    int64_t error_value;
    double factor[HL_CONTROL_SCALARS]; /* host-set multiplier per scalar (plateau) */
    union {
        float f;
        double d;
    } scalar[HL_CONTROL_SCALARS]; /* in the float type of the plan */
    int64_t n_ring;               /* entries ever written; entry i is at i % HL_CONTROL_RING */
    hl_control_log ring[HL_CONTROL_RING];
} hl_control;

/* Micro commits (statistics, accumulators) are held back by a stop or a bad loss. */
static inline bool hl_control_blocks_micro(const hl_control *control)
{
    return control->stopped || !control->window_ok;
}
/* Apply commits are held back unless CONTROL_APPLY allowed them. */
static inline bool hl_control_blocks_apply(const hl_control *control)
{
    return control->stopped || !control->apply;
}

#endif
