/* Control block: the state of a run that kernels read and write, in device memory, so that no step
 * waits for the host.
 *
 * The same layout and the same transitions everywhere: CONTROL_BEGIN, CONTROL_MICRO and
 * CONTROL_APPLY are the three functions below, on every device. Guarded kernels do nothing when
 * hl_control_blocks_* says so; random kernels take their counter from it. The host reads it between
 * steps and writes it only while nothing runs.
 *
 * A step is attempted when it begins. It is an optimizer step when its update is applied: `applied`
 * counts these, and learning rates, moments and the loss scale go by that number.
 *
 * The invariant: once stopped, queued steps change nothing, this block included, so that it still
 * tells which step stopped the run and why. The step that stops is finished: it has its ring entry
 * and counts as skipped. */
#ifndef HL_IR_CONTROL_H
#define HL_IR_CONTROL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HL_CONTROL_FN static inline __host__ __device__
#else
#define HL_CONTROL_FN static inline
#endif

enum { HL_CONTROL_SCALARS = 32, HL_CONTROL_RING = 256 };

/* Dynamic loss scale (Micikevicius et al. 2018, as torch.amp.GradScaler): its first value, and the
 * optimizer steps after which it is doubled. */
enum { HL_LOSS_SCALE_START = 65536, HL_LOSS_SCALE_STEPS = 2000 };

typedef enum hl_nan_mode { HL_NAN_STOP, HL_NAN_SKIP } hl_nan_mode;
/* So many steps one after the other that are skipped stop a run that skips them: it learns nothing
 * any more. Falling from its start to 1 takes a loss scale 16 of them. */
enum { HL_NAN_SKIPS_MAX = 100 };

typedef struct hl_control_log {
    int64_t step; /* attempted */
    double loss, grad_norm, lr;
    int64_t applied; /* 0 or 1 */
} hl_control_log;

typedef struct hl_control {
    int64_t attempted; /* steps that began */
    int64_t applied;   /* optimizer steps: those whose update took place */
    int64_t skipped;
    int64_t skipped_in_row; /* since the last update */
    int64_t micro_row;      /* first sample of the current micro-batch in its window */
    int64_t n_micro;        /* micro-batches done in the window */
    int32_t apply;     /* 1: the current step's update is applied; valid from CONTROL_APPLY on */
    int32_t window_ok; /* no micro-batch of the window had a non-finite loss or an index out of
                          range; 1 between windows */
    int32_t stopped;   /* latched: no later step changes anything */
    int32_t nan_mode;
    int64_t stopped_at;   /* attempted step that stopped the run */
    double loss;          /* of the last micro-batch */
    double grad_norm;     /* of the last step, before clipping */
    double lr;            /* scalar 0 as the current step uses it, for the ring */
    double clip;          /* norm to clip to; 0: none */
    double loss_scale;    /* 1 when precision is not fp16; at least 1 */
    int64_t good_steps;   /* since the scale last changed */
    int64_t scaling;      /* 1: loss_scale moves with overflows */
    double beta[2];       /* Adam's two, */
    double power[2];      /* each to the power of `powered`: a running product */
    int64_t powered;      /* `applied`, once CONTROL_APPLY allowed a step */
    double correction[2]; /* of Adam's moments as old as the run: 1 / (1 - power), and
                             1 / sqrt(1 - power) */
    int64_t error_code;   /* 0, or hl_control_fault of the first operand that is no good */
    int64_t error_row;
    int64_t error_value;
    int64_t table_first;               /* optimizer step of the tables' first column; host-set */
    double factor[HL_CONTROL_SCALARS]; /* host-set multiplier per scalar (plateau) */
    union {
        float f;
        double d;
    } scalar[HL_CONTROL_SCALARS], scale; /* in the float type of the plan; scale: loss_scale as the
                                            current step uses it */
    int64_t n_ring; /* entries ever written; entry i is at i % HL_CONTROL_RING */
    hl_control_log ring[HL_CONTROL_RING];
} hl_control;

/* The error word: which node of which of the session's plans met an index out of range. One word,
 * so that the first of several threads and plans wins as a whole. */
HL_CONTROL_FN int64_t hl_control_fault(int32_t plan, int32_t node)
{
    return ((int64_t)plan << 32) + 1 + node;
}
HL_CONTROL_FN int32_t hl_control_fault_plan(int64_t error_code)
{
    return (int32_t)((error_code - 1) >> 32);
}
HL_CONTROL_FN int32_t hl_control_fault_node(int64_t error_code)
{
    return (int32_t)((error_code - 1) & INT32_MAX);
}

/* A float as a fault's value, and back. */
HL_CONTROL_FN int64_t hl_control_number_bits(double number)
{
    union {
        double number;
        int64_t bits;
    } both;
    both.number = number;
    return both.bits;
}
HL_CONTROL_FN double hl_control_bits_number(int64_t bits)
{
    union {
        double number;
        int64_t bits;
    } both;
    both.bits = bits;
    return both.number;
}

/* Micro commits (statistics, accumulators) are held back by a stop or a bad loss. */
HL_CONTROL_FN bool hl_control_blocks_micro(const hl_control *control)
{
    return control->stopped || !control->window_ok;
}
/* Apply commits are held back unless CONTROL_APPLY allowed them. */
HL_CONTROL_FN bool hl_control_blocks_apply(const hl_control *control)
{
    return control->stopped || !control->apply;
}

/* Neither NaN nor infinite; math.h's isfinite is no device function everywhere. */
HL_CONTROL_FN bool hl_control_finite(double value)
{
    return value - value == 0.0;
}
HL_CONTROL_FN void hl_control_stop(hl_control *control)
{
    control->stopped = 1;
    control->stopped_at = control->attempted;
}

/* Begins the next attempted step with an empty window. tables (S,T): the value of scalar s at
 * optimizer step table_first + t; steps before them have the first, later ones the last. */
HL_CONTROL_FN void hl_control_begin(hl_control *control, const double *tables, int64_t n_scalars,
                                    int64_t n_steps, bool is_f64)
{
    control->n_micro = 0;
    if (control->stopped) return;
    control->attempted++;
    control->micro_row = 0;
    control->window_ok = 1;
    control->apply = 0;
    if (is_f64)
        control->scale.d = control->loss_scale;
    else
        control->scale.f = (float)control->loss_scale;
    if (n_steps < 1) return;
    int64_t t = control->applied - control->table_first;
    t = t < 0 ? 0 : t < n_steps ? t : n_steps - 1;
    for (int64_t s = 0; s < n_scalars && s < HL_CONTROL_SCALARS; s++) {
        double value = tables[s * n_steps + t] * control->factor[s];
        if (is_f64)
            control->scalar[s].d = value;
        else
            control->scalar[s].f = (float)value;
        if (s == 0) control->lr = value;
    }
}

/* After a micro-batch of `rows` samples. Later micro-batches of a stopped step are ignored: the
 * loss that is kept is the one that stopped it. An index out of range spoils the window too, but
 * stops nothing: the run reports it. */
HL_CONTROL_FN void hl_control_micro(hl_control *control, double loss, int64_t rows)
{
    if (control->stopped) return;
    control->loss = loss;
    control->micro_row += rows;
    control->n_micro++;
    if (hl_control_finite(loss) && !control->error_code) return;
    control->window_ok = 0;
    if (control->nan_mode == HL_NAN_STOP && !control->error_code) hl_control_stop(control);
}

/* Halves the scale on overflow, not below 1; doubles it after enough steps without one. */
HL_CONTROL_FN void hl_control_rescale(hl_control *control, bool overflow)
{
    if (!control->scaling) return;
    if (overflow) {
        control->loss_scale = control->loss_scale > 2.0 ? control->loss_scale / 2.0 : 1.0;
        control->good_steps = 0;
    } else if (++control->good_steps >= HL_LOSS_SCALE_STEPS) {
        control->loss_scale *= 2.0;
        control->good_steps = 0;
    }
}

/* Takes the powers on to this optimizer step: by one factor after the step before it, from the
 * beginning where `applied` was set or the betas are others. So they are the same product, with the
 * same bits, on every device and however a run came to its step. Where another factor changes
 * nothing any more (at the least number above 0, at 0 or at 1) the rest are left out. */
HL_CONTROL_FN void hl_control_raise(hl_control *control, double beta1, double beta2)
{
    bool is_other = control->beta[0] != beta1 || control->beta[1] != beta2;
    if (is_other || control->powered > control->applied) {
        control->beta[0] = beta1, control->beta[1] = beta2;
        control->power[0] = control->power[1] = 1;
        control->powered = 0;
    }
    while (control->powered < control->applied) {
        double first = control->power[0] * beta1, second = control->power[1] * beta2;
        bool stays = first == control->power[0] && second == control->power[1];
        control->power[0] = first, control->power[1] = second;
        control->powered = stays ? control->applied : control->powered + 1;
    }
    control->correction[0] = 1 / (1 - control->power[0]);
    control->correction[1] = 1 / sqrt(1 - control->power[1]);
}

/* Moments may have begun within the run: behind `began` optimizer steps. How many steps they are
 * old, the current one among them. */
HL_CONTROL_FN int64_t hl_control_age(const hl_control *control, double began)
{
    return control->applied - (int64_t)began;
}

/* The power of one of the betas for moments of that age. Those as old as the run have the running
 * product; for others it is made by squaring, in 20 products for a million steps. */
HL_CONTROL_FN double hl_control_power(const hl_control *control, int i, int64_t age)
{
    if (age == control->applied) return control->power[i];
    double power = 1;
    for (double factor = control->beta[i]; age > 0; age /= 2, factor *= factor)
        if (age % 2) power *= factor;
    return power;
}

/* The corrections of Adam's moments of that age. */
HL_CONTROL_FN void hl_control_correct(const hl_control *control, int64_t age, double *out)
{
    bool is_whole = age == control->applied;
    out[0] = is_whole ? control->correction[0] : 1 / (1 - hl_control_power(control, 0, age));
    out[1] = is_whole ? control->correction[1] : 1 / sqrt(1 - hl_control_power(control, 1, age));
}

/* sumsq: the squared norm of the unscaled gradient; the betas are Adam's, 0 without it. With a loss
 * scale other than 1 an overflow is the scale's fault and only skips; at 1, the floor, it is the
 * model's. `applied` is advanced before the guarded kernels that follow, so that they see the
 * number of this update, from 1. */
HL_CONTROL_FN void hl_control_apply(hl_control *control, double sumsq, double beta1, double beta2)
{
    if (control->stopped && control->n_micro == 0) return;
    bool finite =
        !control->stopped && control->window_ok && !control->error_code && hl_control_finite(sumsq);
    control->grad_norm = sqrt(sumsq);
    control->apply = finite;
    if (finite) {
        control->applied++;
        control->skipped_in_row = 0;
        hl_control_raise(control, beta1, beta2);
    } else {
        control->skipped++;
        control->skipped_in_row++;
        bool is_last = control->nan_mode == HL_NAN_STOP
                           ? control->loss_scale == 1.0
                           : control->skipped_in_row >= HL_NAN_SKIPS_MAX;
        if (is_last && !control->stopped && !control->error_code) hl_control_stop(control);
    }
    /* The scale causes neither a loss that is not finite nor a wrong index. */
    if (finite || (control->window_ok && !control->error_code))
        hl_control_rescale(control, !finite);
    control->window_ok = 1; /* this window does not block what runs before the next one */
    hl_control_log *entry = &control->ring[control->n_ring % HL_CONTROL_RING];
    entry->step = control->attempted;
    entry->loss = control->loss;
    entry->grad_norm = control->grad_norm;
    entry->lr = control->lr;
    entry->applied = finite;
    control->n_ring++;
}

#endif
