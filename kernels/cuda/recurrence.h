/* Parameters of the kernels of recurrences (ir/recurrence.h), and what both sides have to know of
 * their tiles. */
#ifndef HL_CUDA_RECURRENCE_H
#define HL_CUDA_RECURRENCE_H

#include "ir/control.h"
#include "kernels/cuda/params.h"

/* Kernels are made for the gates that a unit may have, and for the rows of a block's tile. */
#define HL_CUDA_RECURRENCE_GATES(X, ...)   X(1, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#define HL_CUDA_RECURRENCE_FEW(is_16_bit)  ((is_16_bit) ? 8 : 4)
#define HL_CUDA_RECURRENCE_MANY(is_16_bit) (2 * HL_CUDA_RECURRENCE_FEW(is_16_bit))

/* A warp has a group of units of all rows of the tile, or several, one after the other; products
 * take so many terms at once. Blocks have at most so many warps: what a thread holds of many rows
 * wants more registers than twice as many would have. */
#define HL_CUDA_RECURRENCE_UNITS(is_16_bit) ((is_16_bit) ? 16 : 32)
#define HL_CUDA_RECURRENCE_TERMS(is_16_bit) ((is_16_bit) ? 16 : 4)
#define HL_CUDA_RECURRENCE_WARPS(is_16_bit, rows)                                                  \
    ((rows) > HL_CUDA_RECURRENCE_FEW(is_16_bit) ? 8 : 16)
/* Bytes of packed weights that a lane reads at once. */
enum { HL_CUDA_RECURRENCE_WORD_BYTES = 16 };

/* Forward there is a product for each gate, with H terms, backward one, whose terms are all gates'.
 */
typedef struct hl_cuda_recurrence {
    int64_t N, T;
    int32_t H, n_groups, n_terms; /* units, groups of them, terms of a product in steps of TERMS */
    int32_t is_relu, is_reverse, is_sorted;
    int32_t is_narrow;   /* what lies over time has the weight's 16 bits */
    int32_t is_resident; /* the block keeps the weight in shared memory */
} hl_cuda_recurrence;

/* Bytes of a block's shared memory, in this order; each is a multiple of 32. */
typedef struct hl_cuda_recurrence_room {
    int64_t weight;  /* packed */
    int64_t operand; /* what products multiply by it: one of two copies */
    int64_t state;   /* float32 of a unit and a row: one of the arrays of them */
} hl_cuda_recurrence_room;

HL_CUDA_BOTH hl_cuda_recurrence_room hl_cuda_recurrence_measure(const hl_cuda_recurrence *of,
                                                                int n_products, int is_16_bit,
                                                                int rows)
{
    int terms = HL_CUDA_RECURRENCE_TERMS(is_16_bit), units = HL_CUDA_RECURRENCE_UNITS(is_16_bit);
    int most = HL_CUDA_RECURRENCE_WARPS(is_16_bit, rows);
    int warps = of->n_groups < most ? of->n_groups : most;
    int64_t turns = (of->n_groups + warps - 1) / warps, steps = of->n_terms / terms;
    hl_cuda_recurrence_room room;
    room.weight = of->n_groups * steps * n_products * 32 * HL_CUDA_RECURRENCE_WORD_BYTES;
    room.operand = (int64_t)of->n_terms * rows * (is_16_bit ? 2 : 4);
    room.state = turns * warps * units * rows * 4;
    return room;
}

/* The weight as lanes read it, for blocks that do not pack it for themselves. */
typedef struct hl_cuda_recurrence_pack_params {
    struct {
        HL_CUDA_AT(const void) w;
        HL_CUDA_AT(void) packed;
    } at;
    hl_cuda_recurrence of;
    int32_t G, is_grad;
} hl_cuda_recurrence_pack_params;

typedef struct hl_cuda_recurrence_params {
    struct {
        HL_CUDA_AT(const void) w; /* as the operand has it; not resident: packed */
        HL_CUDA_AT(const void) z;
        HL_CUDA_AT(const void) h0;
        HL_CUDA_AT(const int32_t) lengths;
        HL_CUDA_AT(const void) c0;   /* an LSTM's */
        HL_CUDA_AT(const void) bias; /* NULL: none */
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_NUMBER fault;
        HL_CUDA_AT(void) out;
        HL_CUDA_AT(void) h;
        HL_CUDA_AT(void) c;
        HL_CUDA_AT(void) gates;
        HL_CUDA_AT(void) cells;
    } at;
    hl_cuda_recurrence of;
} hl_cuda_recurrence_params;

typedef struct hl_cuda_recurrence_grad_params {
    struct {
        HL_CUDA_AT(const void) w; /* as above */
        HL_CUDA_AT(const void) dout;
        HL_CUDA_AT(const void) dh;
        HL_CUDA_AT(const void) dc;
        HL_CUDA_AT(const void) out;
        HL_CUDA_AT(const void) gates;
        HL_CUDA_AT(const void) cells;
        HL_CUDA_AT(const void) h0;
        HL_CUDA_AT(const int32_t) lengths;
        HL_CUDA_AT(const void) c0;
        HL_CUDA_AT(hl_control) control;
        HL_CUDA_NUMBER fault;
        HL_CUDA_AT(void) dz;
        HL_CUDA_AT(void) dh0;
        HL_CUDA_AT(void) dc0;
        HL_CUDA_AT(void) hidden; /* a GRU's */
    } at;
    hl_cuda_recurrence of;
} hl_cuda_recurrence_grad_params;

#endif
