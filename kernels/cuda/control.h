/* Parameters of the control block's transitions, and of guarded updates, many of which are one
 * launch. */
#ifndef HL_CUDA_CONTROL_H
#define HL_CUDA_CONTROL_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

enum { HL_CUDA_CONTROL_THREADS = 1 };

typedef struct hl_cuda_control_begin_params {
    struct {
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_AT(const double) tables;
    } at;
    int64_t n_scalars, n_steps;
    int32_t is_f64;
} hl_cuda_control_begin_params;

typedef struct hl_cuda_control_micro_params {
    struct {
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_AT(const void) loss;
    } at;
    int64_t rows;
    int32_t loss_dtype;
} hl_cuda_control_micro_params;

typedef struct hl_cuda_control_apply_params {
    struct {
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_AT(const void) sumsq;
    } at;
    double beta1, beta2;
    int32_t sumsq_dtype;
} hl_cuda_control_apply_params;

#if defined(__CUDACC__) || defined(HL_EMULATE)
#include "kernels/cuda/any.h"

/* The transitions, by the first thread of the grid. */
HL_DEVICE void hl_control_run(const hl_cuda_control_begin_params &p)
{
    if (HL_GRID_FIRST == 0)
        hl_control_begin(p.at.control, p.at.tables, p.n_scalars, p.n_steps, p.is_f64 != 0);
}
HL_DEVICE void hl_control_run(const hl_cuda_control_micro_params &p)
{
    if (HL_GRID_FIRST == 0)
        hl_control_micro(p.at.control, hl_read_any(p.at.loss, p.loss_dtype, 0), p.rows);
}
HL_DEVICE void hl_control_run(const hl_cuda_control_apply_params &p)
{
    if (HL_GRID_FIRST == 0)
        hl_control_apply(p.at.control, hl_read_any(p.at.sumsq, p.sumsq_dtype, 0), p.beta1, p.beta2);
}
#endif

/* ---- updates ---- */

enum { HL_CUDA_UPDATES = 32, HL_CUDA_UPDATE_ARGS = 4 /* state, value, control, state again */ };

enum { HL_CUDA_ASSIGN, HL_CUDA_ACCUMULATE, HL_CUDA_EMA };

typedef struct hl_cuda_update {
    int64_t n;
    double decay, take;
    int32_t kind, ramp, state_dtype, value_dtype;
} hl_cuda_update;

typedef struct hl_cuda_update_states_params {
    struct {
        HL_CUDA_AT(const hl_control) control;
        /* Those of update u begin at HL_CUDA_UPDATE_ARGS * u. */
        HL_CUDA_AT(void) operand[HL_CUDA_UPDATES * HL_CUDA_UPDATE_ARGS];
    } at;
    hl_cuda_update of[HL_CUDA_UPDATES];
    int32_t n_updates, is_apply;
} hl_cuda_update_states_params;

#endif
