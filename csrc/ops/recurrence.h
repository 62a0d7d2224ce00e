/* What recurrences and the layers around them share: types, and gradients as nodes. */
#ifndef HL_OPS_RECURRENCE_H
#define HL_OPS_RECURRENCE_H

#include "ir/recurrence.h"

static inline hl_type hl_type_2d(hl_dtype dtype, int64_t a, int64_t b)
{
    return (hl_type){dtype, {2, {a, b}}};
}

static inline hl_type hl_type_3d(hl_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    return (hl_type){dtype, {3, {a, b, c}}};
}

/* Columns of what an op keeps or gives for some cells alone. */
static inline int64_t hl_recurrence_gates(const hl_recurrence *r)
{
    return hl_recurrence_if(hl_recurrence_keeps(r), r->G * r->H);
}

static inline int64_t hl_recurrence_cells(const hl_recurrence *r)
{
    return hl_recurrence_if(hl_recurrence_keeps(r), r->H);
}

static inline int64_t hl_recurrence_c(const hl_recurrence *r)
{
    return hl_recurrence_if(r->cell == HL_CELL_LSTM, r->H);
}

/* What the gradient of a recurrence is made of; c0, w_hr HL_NONE: not there. */
typedef struct hl_recurrence_run {
    hl_attrs attrs; /* of RECURRENCE */
    hl_recurrence r;
    hl_id w, h0, lengths, c0, w_hr;
    hl_id out, gates, cells;
    hl_id dout, dh, dc;
    bool needs_w, needs_bias, needs_w_hr;
} hl_recurrence_run;
/* HL_NONE where it is not needed, or there is none. */
typedef struct hl_recurrence_grads {
    hl_id dz, dh0, dc0, bias, w, w_hr;
} hl_recurrence_grads;
hl_status hl_build_recurrence_grads(hl_graph *graph, const hl_recurrence_run *run,
                                    hl_recurrence_grads *out_grads);

#endif
