/* Recurrences: one layer in one direction, over all steps of time.
 *
 * Row n has steps 0 to lengths[n] - 1, which are taken in that order, or from the last one to the
 * first. A step adds the products of the state before it with w_hh to what its input has given the
 * gates (z); at the other steps of time everything is 0, and the state stays.
 *
 * RECURRENT_LAYER is a recurrence together with the product that makes its z, for libraries that
 * compute no less than that. It is RECURRENCE of what MATMUL makes of x, and wherever no kernel
 * takes it whole, these two stand for it before any pass but autodiff sees it. */
#ifndef HL_IR_RECURRENCE_H
#define HL_IR_RECURRENCE_H

#include "ir/graph.h"

/* What makes a state of its gates. */
typedef enum hl_cell {
    HL_CELL_TANH, /* h = tanh(z + w h) */
    HL_CELL_RELU, /* h = max(z + w h, 0) */
    HL_CELL_LSTM, /* i, f, g, o: c = f c + i g, h = o tanh(c) */
    HL_CELL_GRU,  /* r, u, n: n = tanh(z + r (w h)), h = (1 - u) n + u h */
    HL_CELL_COUNT
} hl_cell;

/* Operands of RECURRENCE: w_hh (G H,P), z (N,T,G H), h0 (N,P), lengths (N); then, if they are
 * there, c0 (N,H) of an LSTM, the bias (3 H) of a GRU's products with the state, w_hr (P,H). */
enum { HL_RECURRENCE_W, HL_RECURRENCE_Z, HL_RECURRENCE_H0, HL_RECURRENCE_LENGTHS };
enum {
    HL_RECURRENCE_OUT,   /* (N,T,P): the states */
    HL_RECURRENCE_H,     /* (N,P): the last one */
    HL_RECURRENCE_C,     /* (N,H) the last cell of an LSTM, else (N,0) */
    HL_RECURRENCE_GATES, /* (N,T,G H) for the gradient; of RNNs (N,T,0) */
    HL_RECURRENCE_CELLS, /* (N,T,H) for it: an LSTM's cells, w h of a GRU's n; of RNNs (N,T,0) */
    HL_RECURRENCE_OUTPUTS
};

/* Operands of RECURRENCE_GRAD; then, if they are there, c0 and w_hr. */
enum {
    HL_RECURRENCE_GRAD_W,
    HL_RECURRENCE_GRAD_DOUT,
    HL_RECURRENCE_GRAD_DH,
    HL_RECURRENCE_GRAD_DC,
    HL_RECURRENCE_GRAD_OUT,
    HL_RECURRENCE_GRAD_GATES,
    HL_RECURRENCE_GRAD_CELLS,
    HL_RECURRENCE_GRAD_H0,
    HL_RECURRENCE_GRAD_LENGTHS,
    HL_RECURRENCE_GRAD_INPUTS
};
enum {
    HL_RECURRENCE_GRAD_DZ,     /* (N,T,G H): of the gates, before their functions */
    HL_RECURRENCE_GRAD_DH0,    /* (N,P) */
    HL_RECURRENCE_GRAD_DC0,    /* (N,H) of an LSTM, else (N,0) */
    HL_RECURRENCE_GRAD_HIDDEN, /* (N,T,3 H) of a GRU's products with the state, else (N,T,0) */
    HL_RECURRENCE_GRAD_STATES, /* (N,T,P) of the projected states, without projection (N,T,0) */
    HL_RECURRENCE_GRAD_OUTPUTS
};

typedef struct hl_recurrence {
    hl_cell cell;
    bool is_reverse, has_bias, has_projection, is_sorted;
    int64_t N, T, H, P; /* rows, steps, units, elements of a state (H without projection) */
    int64_t G;          /* gates of a unit */
    int c0, bias, w_hr; /* operands; -1: not there */
} hl_recurrence;

static inline int64_t hl_cell_gates(int64_t cell)
{
    return cell == HL_CELL_LSTM ? 4 : cell == HL_CELL_GRU ? 3 : 1;
}

/* Columns of what is there for LSTMs, or for cells that keep gates, alone. */
static inline int64_t hl_recurrence_if(bool is_there, int64_t columns)
{
    return is_there ? columns : 0;
}

static inline bool hl_recurrence_keeps(const hl_recurrence *r)
{
    return r->cell == HL_CELL_LSTM || r->cell == HL_CELL_GRU;
}

/* Of a node of either op whose types are right. */
hl_recurrence hl_recurrence_of(const hl_graph *graph, const hl_node *node);

/* Operands of RECURRENT_LAYER; then, if they are there, c0 (N,H) of an LSTM, the bias (G H) of z,
 * the bias (3 H) of a GRU's products with the state, w_hr (P,H). Its outputs are RECURRENCE's. */
enum {
    HL_RECURRENT_X,    /* (N,T,I) */
    HL_RECURRENT_W_IH, /* (G H,I) */
    HL_RECURRENT_W_HH, /* (G H,P) */
    HL_RECURRENT_H0,
    HL_RECURRENT_LENGTHS,
    HL_RECURRENT_INPUTS
};
/* Operands of RECURRENT_LAYER_GRAD; then, if they are there, c0 and w_hr. What a kernel may keep in
 * a form of its own comes early, where a query can say that it reads it. */
enum {
    HL_RECURRENT_GRAD_X,
    HL_RECURRENT_GRAD_W_IH,
    HL_RECURRENT_GRAD_W_HH,
    HL_RECURRENT_GRAD_GATES,
    HL_RECURRENT_GRAD_CELLS,
    HL_RECURRENT_GRAD_OUT,
    HL_RECURRENT_GRAD_DOUT,
    HL_RECURRENT_GRAD_DH,
    HL_RECURRENT_GRAD_DC,
    HL_RECURRENT_GRAD_H0,
    HL_RECURRENT_GRAD_LENGTHS,
    HL_RECURRENT_GRAD_INPUTS
};
enum {
    HL_RECURRENT_GRAD_DX,         /* (N,T,I) */
    HL_RECURRENT_GRAD_DW_IH,      /* (G H,I) */
    HL_RECURRENT_GRAD_DW_HH,      /* (G H,P) */
    HL_RECURRENT_GRAD_DH0,        /* (N,P) */
    HL_RECURRENT_GRAD_DC0,        /* (N,H) of an LSTM, else (N,0) */
    HL_RECURRENT_GRAD_BIAS,       /* (G H), without it (0) */
    HL_RECURRENT_GRAD_STATE_BIAS, /* (3 H), without it (0) */
    HL_RECURRENT_GRAD_DW_HR,      /* (P,H), without projection (0,H) */
    HL_RECURRENT_GRAD_OUTPUTS
};

/* r: as of the recurrence within, its c0, bias and w_hr by their places in this node; of a
 * gradient, which reads no bias, r.bias is -1. */
typedef struct hl_recurrent {
    hl_recurrence r;
    int64_t I;
    int bias; /* of z; -1: not there, or not read */
    bool has_bias, has_state_bias;
} hl_recurrent;
hl_recurrent hl_recurrent_of(const hl_graph *graph, const hl_node *node);

/* Where step i of a direction lies in time. */
static inline int64_t hl_recurrence_time(const hl_recurrence *r, int64_t i)
{
    return r->is_reverse ? r->T - 1 - i : i;
}

/* A length that the op does not take: out of range or, where they must be sorted, out of order. */
static inline bool hl_recurrence_refuses(const hl_recurrence *r, const int32_t *lengths, int64_t n)
{
    if (lengths[n] < 0 || lengths[n] > r->T) return true;
    return r->is_sorted && n > 0 && lengths[n] > lengths[n - 1];
}

/* Does a row's first step, or its last, lie there? */
static inline bool hl_recurrence_begins(const hl_recurrence *r, int64_t t, int64_t length)
{
    return t == (r->is_reverse ? length - 1 : 0);
}
static inline bool hl_recurrence_ends(const hl_recurrence *r, int64_t t, int64_t length)
{
    return t == (r->is_reverse ? 0 : length - 1);
}

#endif
