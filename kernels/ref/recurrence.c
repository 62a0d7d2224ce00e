/* Recurrences (ir/recurrence.h): tanh and relu (Elman 1990), LSTM (Hochreiter and Schmidhuber 1997,
 * Gers et al. 2000; projection: Sak et al. 2014), GRU (Cho et al. 2014, the reset gate as in
 * cuDNN), and what their backpropagation through time gives. One row after another. A layer makes z
 * where it is read. */
#include "ir/recurrence.h"

#include <math.h>

#include "kernels/ref/ref.h"

/* Sizes of the types of x (N,T,.) and of the state's weight; no optional operand is there yet. */
static hl_recurrence make_sizes(int64_t cell, bool is_reverse, bool is_sorted, const int64_t *x,
                                const int64_t *w)
{
    hl_recurrence r = {.cell = (hl_cell)cell,
                       .is_reverse = is_reverse,
                       .is_sorted = is_sorted,
                       .N = x[0],
                       .T = x[1],
                       .P = w[1],
                       .G = hl_cell_gates(cell),
                       .c0 = -1,
                       .bias = -1,
                       .w_hr = -1};
    r.H = w[0] / r.G;
    return r;
}

/* A node's attributes and sizes, of the types at `over_time` (N,T,.) and of the weight. */
static hl_recurrence read_sizes(const hl_ref_call *call, int over_time, int first_optional)
{
    const hl_attrs_recurrence *attrs = &call->attrs.recurrence;
    hl_recurrence r = make_sizes(attrs->cell, attrs->reverse, attrs->is_sorted,
                                 call->in[over_time].shape.dim, call->in[0].shape.dim);
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
    const double *x, *w_ih, *z_bias;   /* of a layer, in the place of z */
    int64_t I;
    double *h, *c; /* of the row, now */
    double *full;  /* (H): what a projection gets */
    double *out, *gates, *cells;
} forward;

/* Row `row` of what the input gives the gates. */
static double find_z(const forward *f, int64_t n, int64_t t, int64_t row)
{
    if (f->z) return f->z[at(&f->r, n, t, f->r.G * f->r.H, row)];
    return multiply_row(f->w_ih + row * f->I, f->x + at(&f->r, n, t, f->I, 0), f->I) +
           (f->z_bias ? f->z_bias[row] : 0);
}

/* Unit j of step t: its state, or what is projected, and what is kept. */
static double run_unit(const forward *f, int64_t n, int64_t t, int64_t j)
{
    const hl_recurrence *r = &f->r;
    double sum[4], product[4];
    for (int64_t g = 0; g < r->G; g++) {
        int64_t row = g * r->H + j;
        product[g] = multiply_row(f->w + row * r->P, f->h, r->P) + (f->bias ? f->bias[row] : 0);
        sum[g] = find_z(f, n, t, row) + product[g];
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

/* memcpy takes no null pointers, as values without elements have. */
static void copy(double *dst, const double *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = src[i];
}

/* out, h, c, gates, cells of all rows. */
static void run_rows(forward *f, const double *h0, const double *c0, const int32_t *lengths,
                     void *const *outs, const hl_launch *launch)
{
    const hl_recurrence *r = &f->r;
    f->out = outs[HL_RECURRENCE_OUT];
    f->gates = outs[HL_RECURRENCE_GATES];
    f->cells = outs[HL_RECURRENCE_CELLS];
    int64_t sizes[] = {r->N * r->T * r->P, hl_recurrence_keeps(r) ? r->N * r->T * r->G * r->H : 0,
                       hl_recurrence_keeps(r) ? r->N * r->T * r->H : 0};
    double *zeroed[] = {f->out, f->gates, f->cells};
    for (int i = 0; i < 3; i++)
        for (int64_t k = 0; k < sizes[i]; k++) zeroed[i][k] = 0;
    for (int64_t n = 0; n < r->N; n++) {
        int64_t length = read_length(r, lengths, n, launch);
        f->h = (double *)outs[HL_RECURRENCE_H] + n * r->P;
        f->c = (double *)outs[HL_RECURRENCE_C] + (c0 ? n * r->H : 0);
        copy(f->h, h0 + n * r->P, r->P);
        if (c0) copy(f->c, c0 + n * r->H, r->H);
        for (int64_t i = 0; i < length; i++) {
            int64_t t = r->is_reverse ? length - 1 - i : i;
            double *out = f->out + at(r, n, t, r->P, 0);
            for (int64_t p = 0; p < r->P; p++) out[p] = 0;
            for (int64_t j = 0; j < r->H; j++) {
                double unit = run_unit(f, n, t, j);
                if (!f->w_hr) out[j] = unit;
                for (int64_t p = 0; f->w_hr && p < r->P; p++)
                    out[p] += f->w_hr[p * r->H + j] * unit;
            }
            copy(f->h, out, r->P);
        }
    }
}

/* w, z, h0, lengths[, c0][, bias][, w_hr] -> out, h, c, gates, cells */
static hl_status launch_recurrence(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    forward f = {.r = read_sizes(call, HL_RECURRENCE_Z, HL_RECURRENCE_LENGTHS + 1),
                 .w = args[HL_RECURRENCE_W],
                 .z = args[HL_RECURRENCE_Z]};
    if (f.r.bias >= 0) f.bias = args[f.r.bias];
    if (f.r.w_hr >= 0) f.w_hr = args[f.r.w_hr];
    run_rows(&f, args[HL_RECURRENCE_H0], f.r.c0 >= 0 ? args[f.r.c0] : NULL,
             args[HL_RECURRENCE_LENGTHS], args + call->n_in, launch);
    return HL_OK;
}

/* A layer's sizes; *out_bias: the place of z's bias, or -1. */
static hl_recurrence read_layer(const hl_ref_call *call, int at, bool is_grad, int *out_bias)
{
    const hl_attrs_recurrent *attrs = &call->attrs.recurrent;
    hl_recurrence r =
        make_sizes(attrs->cell, attrs->reverse, attrs->is_sorted,
                   call->in[HL_RECURRENT_X].shape.dim, call->in[HL_RECURRENT_W_HH].shape.dim);
    *out_bias = -1;
    if (r.cell == HL_CELL_LSTM) r.c0 = at++;
    if (attrs->has_bias && !is_grad) *out_bias = at++;
    if (attrs->has_state_bias && !is_grad) r.bias = at++;
    if (attrs->has_projection) r.w_hr = at;
    return r;
}

/* x, w_ih, w_hh, h0, lengths[, c0][, bias][, state_bias][, w_hr] -> out, h, c, gates, cells */
static hl_status launch_layer(const hl_kernel_state *state, void *const *args,
                              const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    int bias;
    forward f = {.r = read_layer(call, HL_RECURRENT_INPUTS, false, &bias),
                 .w = args[HL_RECURRENT_W_HH],
                 .x = args[HL_RECURRENT_X],
                 .w_ih = args[HL_RECURRENT_W_IH],
                 .I = call->in[HL_RECURRENT_X].shape.dim[2]};
    if (bias >= 0) f.z_bias = args[bias];
    if (f.r.bias >= 0) f.bias = args[f.r.bias];
    if (f.r.w_hr >= 0) f.w_hr = args[f.r.w_hr];
    run_rows(&f, args[HL_RECURRENT_H0], f.r.c0 >= 0 ? args[f.r.c0] : NULL,
             args[HL_RECURRENT_LENGTHS], args + call->n_in, launch);
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

/* Over all rows: what the last state and cell get becomes what the first ones get. */
static void run_rows_back(backward *b, const double *dout, const double *h0, const double *c0,
                          double *dh, double *dc, const int32_t *lengths, const hl_launch *launch)
{
    const hl_recurrence *r = &b->r;
    for (int64_t n = 0; n < r->N; n++) {
        int64_t length = read_length(r, lengths, n, launch);
        b->dh = dh + n * r->P;
        b->dc = dc + (c0 ? n * r->H : 0);
        b->h0 = h0 + n * r->P;
        if (c0) b->c0 = c0 + n * r->H;
        for (int64_t i = length - 1; i >= 0; i--)
            run_step_grad(b, n, r->is_reverse ? length - 1 - i : i, length, dout);
    }
}

static void fill_zero(const hl_ref_call *call, void *const *outs)
{
    for (int j = 0; j < call->n_out; j++)
        for (int64_t k = 0; k < hl_shape_numel(&call->out[j].shape); k++)
            ((double *)outs[j])[k] = 0;
}

static void copy_state(const hl_recurrence *r, double *dh, double *dc, const double *from_h,
                       const double *from_c)
{
    copy(dh, from_h, r->N * r->P);
    if (r->c0 >= 0) copy(dc, from_c, r->N * r->H);
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
    if (b.r.w_hr >= 0) b.w_hr = args[b.r.w_hr];
    fill_zero(call, outs);
    copy_state(&b.r, outs[HL_RECURRENCE_GRAD_DH0], outs[HL_RECURRENCE_GRAD_DC0],
               args[HL_RECURRENCE_GRAD_DH], args[HL_RECURRENCE_GRAD_DC]);
    run_rows_back(&b, args[HL_RECURRENCE_GRAD_DOUT], args[HL_RECURRENCE_GRAD_H0],
                  b.r.c0 >= 0 ? args[b.r.c0] : NULL, outs[HL_RECURRENCE_GRAD_DH0],
                  outs[HL_RECURRENCE_GRAD_DC0], args[HL_RECURRENCE_GRAD_LENGTHS], launch);
    return HL_OK;
}

/* dw (rows,columns) += d x^T, of a step. */
static void add_outer(double *dw, const double *d, const double *x, int64_t rows, int64_t columns)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < columns; k++) dw[row * columns + k] += d[row] * x[k];
}

/* What x and all weights get of one step, of what its gates got. */
static void add_step(const backward *b, const hl_ref_call *call, void *const *args, int64_t n,
                     int64_t t, int64_t length)
{
    const hl_recurrence *r = &b->r;
    const hl_attrs_recurrent *attrs = &call->attrs.recurrent;
    void *const *outs = args + call->n_in;
    int64_t rows = r->G * r->H, I = call->in[HL_RECURRENT_GRAD_X].shape.dim[2];
    const double *x = (const double *)args[HL_RECURRENT_GRAD_X] + at(r, n, t, I, 0),
                 *w_ih = args[HL_RECURRENT_GRAD_W_IH], *dz = b->dz + at(r, n, t, rows, 0),
                 *hidden = (r->cell == HL_CELL_GRU ? b->hidden : b->dz) + at(r, n, t, rows, 0);
    double *dx = (double *)outs[HL_RECURRENT_GRAD_DX] + at(r, n, t, I, 0);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = 0; k < I; k++) dx[k] += dz[row] * w_ih[row * I + k];
        for (int64_t p = 0; p < r->P; p++)
            ((double *)outs[HL_RECURRENT_GRAD_DW_HH])[row * r->P + p] +=
                hidden[row] * find_before(b, b->out, b->h0, n, t, length, r->P, p);
        if (attrs->has_bias) ((double *)outs[HL_RECURRENT_GRAD_BIAS])[row] += dz[row];
        if (attrs->has_state_bias)
            ((double *)outs[HL_RECURRENT_GRAD_STATE_BIAS])[row] += hidden[row];
    }
    add_outer(outs[HL_RECURRENT_GRAD_DW_IH], dz, x, rows, I);
    for (int64_t j = 0; b->w_hr && j < r->H; j++) {
        double full =
            b->gates[at(r, n, t, rows, 3 * r->H + j)] * tanh(b->cells[at(r, n, t, r->H, j)]);
        for (int64_t p = 0; p < r->P; p++)
            ((double *)outs[HL_RECURRENT_GRAD_DW_HR])[p * r->H + j] +=
                b->states[at(r, n, t, r->P, p)] * full;
    }
}

/* For dz, what a GRU's products with the state get, and what projected states get. */
static hl_status query_layer_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    hl_recurrent l = hl_recurrent_of(graph, &graph->nodes[id]);
    HL_TRY(hl_ref_query_f64(device, graph, id, out_req, out_why_not));
    out_req->scratch_bytes =
        (size_t)(l.r.N * l.r.T * (2 * l.r.G * l.r.H + l.r.P)) * sizeof(double) + 1;
    return HL_OK;
}

/* x, w_ih, w_hh, gates, cells, out, dout, dh, dc, h0, lengths[, c0][, w_hr] -> dx, dw_ih, dw_hh,
 * dh0, dc0, dbias, dstate_bias, dw_hr */
static hl_status launch_layer_grad(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)stream;
    const hl_ref_call *call = state->impl;
    void *const *outs = args + call->n_in;
    const int32_t *lengths = args[HL_RECURRENT_GRAD_LENGTHS];
    int bias;
    backward b = {.r = read_layer(call, HL_RECURRENT_GRAD_INPUTS, true, &bias),
                  .w = args[HL_RECURRENT_GRAD_W_HH],
                  .out = args[HL_RECURRENT_GRAD_OUT],
                  .gates = args[HL_RECURRENT_GRAD_GATES],
                  .cells = args[HL_RECURRENT_GRAD_CELLS],
                  .dz = launch->scratch};
    const hl_recurrence *r = &b.r;
    b.hidden = b.dz + r->N * r->T * r->G * r->H;
    b.states = b.hidden + r->N * r->T * r->G * r->H;
    if (r->w_hr >= 0) b.w_hr = args[r->w_hr];
    fill_zero(call, outs);
    copy_state(r, outs[HL_RECURRENT_GRAD_DH0], outs[HL_RECURRENT_GRAD_DC0],
               args[HL_RECURRENT_GRAD_DH], args[HL_RECURRENT_GRAD_DC]);
    run_rows_back(&b, args[HL_RECURRENT_GRAD_DOUT], args[HL_RECURRENT_GRAD_H0],
                  r->c0 >= 0 ? args[r->c0] : NULL, outs[HL_RECURRENT_GRAD_DH0],
                  outs[HL_RECURRENT_GRAD_DC0], lengths, launch);
    for (int64_t n = 0; n < r->N; n++) {
        int64_t length = read_length(r, lengths, n, launch);
        b.h0 = (const double *)args[HL_RECURRENT_GRAD_H0] + n * r->P;
        for (int64_t t = 0; t < length; t++) add_step(&b, call, args, n, t, length);
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(RECURRENCE, "recurrence", hl_ref_query_f64, launch_recurrence),
    HL_REF_KERNEL(RECURRENCE_GRAD, "recurrence_grad", hl_ref_query_f64, launch_recurrence_grad),
    HL_REF_KERNEL(RECURRENT_LAYER, "recurrent_layer", hl_ref_query_f64, launch_layer),
    HL_REF_KERNEL(RECURRENT_LAYER_GRAD, "recurrent_layer_grad", query_layer_grad,
                  launch_layer_grad),
};
const hl_ref_family hl_ref_recurrence = HL_REF_FAMILY(kernels);
