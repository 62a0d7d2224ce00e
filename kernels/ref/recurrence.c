/* Recurrences (ir/recurrence.h): tanh and relu (Elman 1990), LSTM (Hochreiter and Schmidhuber 1997,
 * Gers et al. 2000; projection: Sak et al. 2014), GRU (Cho et al. 2014, the reset gate as in
 * cuDNN), and what their backpropagation through time gives. One row after another. */
#include "ir/recurrence.h"

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

/* A node's attributes and sizes, of the types at `over_time` (N,T,.) and of the weight. */
static hl_recurrence read_sizes(const hl_ref_call *call, int over_time, int first_optional)
{
    const hl_attrs_recurrence *attrs = &call->attrs.recurrence;
    const int64_t *w = call->in[0].shape.dim, *x = call->in[over_time].shape.dim;
    hl_recurrence r = {.cell = (hl_cell)attrs->cell,
                       .is_reverse = attrs->reverse,
                       .is_sorted = attrs->is_sorted,
                       .N = x[0],
                       .T = x[1],
                       .P = w[1],
                       .G = hl_cell_gates(attrs->cell),
                       .c0 = -1,
                       .bias = -1,
                       .w_hr = -1};
    r.H = w[0] / r.G;
    if (r.cell == HL_CELL_LSTM) r.c0 = first_optional++;
    if (attrs->has_bias) r.bias = first_optional++;
    if (attrs->has_projection) r.w_hr = first_optional;
    return r;
}

/* One that is out of range counts as 0. */
static int64_t read_length(const hl_recurrence *r, const int32_t *lengths, int64_t n,
                           const hl_launch *launch)
{
    int64_t length = lengths[n];
    if (hl_recurrence_refuses(r, lengths, n)) hl_launch_fault(launch, n, length);
    return length >= 0 && length <= r->T ? length : 0;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double multiply_row(const double *w, const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += w[i] * x[i];
    return sum;
}

/* Element k of step t of row n, of (N,T,K). */
static int64_t at(const hl_recurrence *r, int64_t n, int64_t t, int64_t K, int64_t k)
{
    return (n * r->T + t) * K + k;
}

typedef struct forward {
    hl_recurrence r;
    const double *w, *z, *bias, *w_hr; /* bias, w_hr NULL: none */
    double *h, *c;                     /* of the row, now */
    double *full;                      /* (H): what a projection gets */
    double *out, *gates, *cells;
} forward;

/* Unit j of step t: its state, or what is projected, and what is kept. */
static double run_unit(const forward *f, int64_t n, int64_t t, int64_t j)
{
    const hl_recurrence *r = &f->r;
    double sum[4], product[4];
    for (int64_t g = 0; g < r->G; g++) {
        int64_t row = g * r->H + j;
        product[g] = multiply_row(f->w + row * r->P, f->h, r->P) + (f->bias ? f->bias[row] : 0);
        sum[g] = f->z[at(r, n, t, r->G * r->H, row)] + product[g];
    }
    if (r->cell == HL_CELL_TANH) return tanh(sum[0]);
    if (r->cell == HL_CELL_RELU) return sum[0] > 0 || isnan(sum[0]) ? sum[0] : 0;
    double gate[4] = {sigmoid(sum[0]), sigmoid(sum[1])}, result;
    double *cell = &f->cells[at(r, n, t, r->H, j)];
    if (r->cell == HL_CELL_LSTM) {
        gate[2] = tanh(sum[2]), gate[3] = sigmoid(sum[3]);
        *cell = f->c[j] = gate[1] * f->c[j] + gate[0] * gate[2];
        result = gate[3] * tanh(*cell);
    } else {
        gate[2] = tanh(sum[2] - product[2] + gate[0] * product[2]);
        *cell = product[2];
        result = (1 - gate[1]) * gate[2] + gate[1] * f->h[j];
    }
    for (int64_t g = 0; g < r->G; g++) f->gates[at(r, n, t, r->G * r->H, g * r->H + j)] = gate[g];
    return result;
}

/* w, z, h0, lengths[, c0][, bias][, w_hr] -> out, h, c, gates, cells */
static hl_status launch_recurrence(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    void *const *outs = args + call->n_in;
    forward f = {.r = read_sizes(call, HL_RECURRENCE_Z, HL_RECURRENCE_LENGTHS + 1),
                 .w = args[HL_RECURRENCE_W],
                 .z = args[HL_RECURRENCE_Z],
                 .out = outs[HL_RECURRENCE_OUT],
                 .gates = outs[HL_RECURRENCE_GATES],
                 .cells = outs[HL_RECURRENCE_CELLS]};
    const hl_recurrence *r = &f.r;
    int64_t sizes[] = {r->N * r->T * r->P, hl_recurrence_keeps(r) ? r->N * r->T * r->G * r->H : 0,
                       hl_recurrence_keeps(r) ? r->N * r->T * r->H : 0};
    double *zeroed[] = {f.out, f.gates, f.cells};
    for (int i = 0; i < 3; i++)
        for (int64_t k = 0; k < sizes[i]; k++) zeroed[i][k] = 0;
    if (r->bias >= 0) f.bias = args[r->bias];
    if (r->w_hr >= 0) f.w_hr = args[r->w_hr];
    for (int64_t n = 0; n < r->N; n++) {
        int64_t length = read_length(r, args[HL_RECURRENCE_LENGTHS], n, launch);
        f.h = (double *)outs[HL_RECURRENCE_H] + n * r->P;
        f.c = (double *)outs[HL_RECURRENCE_C] + (r->c0 >= 0 ? n * r->H : 0);
        memcpy(f.h, (const double *)args[HL_RECURRENCE_H0] + n * r->P, (size_t)r->P * sizeof *f.h);
        if (r->c0 >= 0)
            memcpy(f.c, (const double *)args[r->c0] + n * r->H, (size_t)r->H * sizeof *f.c);
        for (int64_t i = 0; i < length; i++) {
            int64_t t = r->is_reverse ? length - 1 - i : i;
            double *out = f.out + at(r, n, t, r->P, 0);
            for (int64_t p = 0; p < r->P; p++) out[p] = 0;
            for (int64_t j = 0; j < r->H; j++) {
                double unit = run_unit(&f, n, t, j);
                if (!f.w_hr) out[j] = unit;
                for (int64_t p = 0; f.w_hr && p < r->P; p++) out[p] += f.w_hr[p * r->H + j] * unit;
            }
            memcpy(f.h, out, (size_t)r->P * sizeof *f.h);
        }
    }
    return HL_OK;
}

typedef struct backward {
    hl_recurrence r;
    const double *w, *out, *gates, *cells, *w_hr;
    const double *h0, *c0; /* of the row */
    double *dh, *dc;       /* of the row: of the state behind the step, then of that before it */
    double *dz, *hidden, *states;
} backward;

static double find_before(const backward *b, const double *over_time, const double *first,
                          int64_t n, int64_t t, int64_t length, int64_t K, int64_t k)
{
    if (hl_recurrence_begins(&b->r, t, length)) return first[k];
    return over_time[at(&b->r, n, b->r.is_reverse ? t + 1 : t - 1, K, k)];
}

/* What unit j's gates get, of what its state gets, or what is projected: d, and of their products
 * with the state before: hidden; *kept: what that gets beside. */
static void run_unit_grad(const backward *b, int64_t n, int64_t t, int64_t length, int64_t j,
                          double dh, double *d, double *hidden, double *kept)
{
    const hl_recurrence *r = &b->r;
    double gate[4] = {0};
    for (int64_t g = 0; hl_recurrence_keeps(r) && g < r->G; g++)
        gate[g] = b->gates[at(r, n, t, r->G * r->H, g * r->H + j)];
    *kept = 0;
    if (r->cell == HL_CELL_LSTM) {
        double c = b->cells[at(r, n, t, r->H, j)], top = tanh(c);
        double before = find_before(b, b->cells, b->c0, n, t, length, r->H, j);
        double dc = b->dc[j] + dh * gate[3] * (1 - top * top);
        d[0] = dc * gate[2] * gate[0] * (1 - gate[0]);
        d[1] = dc * before * gate[1] * (1 - gate[1]);
        d[2] = dc * gate[0] * (1 - gate[2] * gate[2]);
        d[3] = dh * top * gate[3] * (1 - gate[3]);
        b->dc[j] = dc * gate[1];
    } else if (r->cell == HL_CELL_GRU) {
        double product = b->cells[at(r, n, t, r->H, j)];
        double before = find_before(b, b->out, b->h0, n, t, length, r->P, j);
        d[1] = dh * (before - gate[2]) * gate[1] * (1 - gate[1]);
        d[2] = dh * (1 - gate[1]) * (1 - gate[2] * gate[2]);
        d[0] = d[2] * product * gate[0] * (1 - gate[0]);
        *kept = dh * gate[1];
    } else {
        double y = b->out[at(r, n, t, r->P, j)];
        d[0] = r->cell == HL_CELL_TANH ? dh * (1 - y * y) : y > 0 ? dh : 0;
    }
    for (int64_t g = 0; g < r->G; g++) hidden[g] = d[g];
    if (r->cell == HL_CELL_GRU) hidden[2] = d[2] * gate[0];
}

static void run_step_grad(const backward *b, int64_t n, int64_t t, int64_t length,
                          const double *dout)
{
    const hl_recurrence *r = &b->r;
    double *states = b->states + at(r, n, t, r->P, 0);
    for (int64_t p = 0; p < r->P; p++) {
        double dh = b->dh[p] + dout[at(r, n, t, r->P, p)];
        if (b->w_hr) states[p] = dh, dh = 0;
        b->dh[p] = dh;
    }
    /* Units read what the state gets before it becomes what the one before gets: that is summed
     * in the step's own part of dz, once all gates have theirs. */
    for (int64_t j = 0; j < r->H; j++) {
        double d[4], hidden[4], kept, dh = b->w_hr ? 0 : b->dh[j];
        for (int64_t p = 0; b->w_hr && p < r->P; p++) dh += states[p] * b->w_hr[p * r->H + j];
        run_unit_grad(b, n, t, length, j, dh, d, hidden, &kept);
        if (!b->w_hr) b->dh[j] = kept;
        for (int64_t g = 0; g < r->G; g++) {
            b->dz[at(r, n, t, r->G * r->H, g * r->H + j)] = d[g];
            if (r->cell == HL_CELL_GRU)
                b->hidden[at(r, n, t, r->G * r->H, g * r->H + j)] = hidden[g];
        }
    }
    const double *given = r->cell == HL_CELL_GRU ? b->hidden : b->dz;
    for (int64_t row = 0; row < r->G * r->H; row++)
        for (int64_t p = 0; p < r->P; p++)
            b->dh[p] += given[at(r, n, t, r->G * r->H, row)] * b->w[row * r->P + p];
}

/* w, dout, dh, dc, out, gates, cells, h0, lengths[, c0][, w_hr] -> dz, dh0, dc0, hidden, states */
static hl_status launch_recurrence_grad(const hl_kernel_state *state, void *const *args,
                                        const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    void *const *outs = args + call->n_in;
    backward b = {.r = read_sizes(call, HL_RECURRENCE_GRAD_OUT, HL_RECURRENCE_GRAD_INPUTS),
                  .w = args[HL_RECURRENCE_GRAD_W],
                  .out = args[HL_RECURRENCE_GRAD_OUT],
                  .gates = args[HL_RECURRENCE_GRAD_GATES],
                  .cells = args[HL_RECURRENCE_GRAD_CELLS],
                  .dz = outs[HL_RECURRENCE_GRAD_DZ],
                  .hidden = outs[HL_RECURRENCE_GRAD_HIDDEN],
                  .states = outs[HL_RECURRENCE_GRAD_STATES]};
    const hl_recurrence *r = &b.r;
    if (r->w_hr >= 0) b.w_hr = args[r->w_hr];
    for (int j = 0; j < call->n_out; j++)
        for (int64_t k = 0; k < hl_shape_numel(&call->out[j].shape); k++)
            ((double *)outs[j])[k] = 0;
    for (int64_t n = 0; n < r->N; n++) {
        int64_t length = read_length(r, args[HL_RECURRENCE_GRAD_LENGTHS], n, launch);
        b.dh = (double *)outs[HL_RECURRENCE_GRAD_DH0] + n * r->P;
        b.dc = (double *)outs[HL_RECURRENCE_GRAD_DC0] + (r->c0 >= 0 ? n * r->H : 0);
        b.h0 = (const double *)args[HL_RECURRENCE_GRAD_H0] + n * r->P;
        if (r->c0 >= 0) b.c0 = (const double *)args[r->c0] + n * r->H;
        memcpy(b.dh, (const double *)args[HL_RECURRENCE_GRAD_DH] + n * r->P,
               (size_t)r->P * sizeof *b.dh);
        if (r->c0 >= 0)
            memcpy(b.dc, (const double *)args[HL_RECURRENCE_GRAD_DC] + n * r->H,
                   (size_t)r->H * sizeof *b.dc);
        for (int64_t i = length - 1; i >= 0; i--)
            run_step_grad(&b, n, r->is_reverse ? length - 1 - i : i, length,
                          args[HL_RECURRENCE_GRAD_DOUT]);
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(RECURRENCE, "recurrence", hl_ref_query_f64, launch_recurrence),
    HL_REF_KERNEL(RECURRENCE_GRAD, "recurrence_grad", hl_ref_query_f64, launch_recurrence_grad),
};
const hl_ref_family hl_ref_recurrence = HL_REF_FAMILY(kernels);
