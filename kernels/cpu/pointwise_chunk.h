/* What the pointwise engine's two halves share: the driver (pointwise.c) that cuts the iteration
 * into chunks, and the micro-ops on one chunk (pointwise_f32.c, pointwise_64.c). */
#ifndef HL_KERNELS_CPU_POINTWISE_CHUNK_H
#define HL_KERNELS_CPU_POINTWISE_CHUNK_H

#include "ir/program.h"
#include "kernels/cpu/simd/simd.h"

enum {
    PW_CHUNK = 1024,                              /* elements that a micro-op handles at a time */
    PW_VALUES = HL_PROGRAM_CODE + HL_PROGRAM_OUTS /* a load or spread may be added per output */
};

/* One micro-op on a chunk; operands are places in the table of addresses. */
enum { PW_SPREAD = HL_PW_COUNT }; /* a number copied to every element */
typedef struct pw_step {
    uint8_t op;
    uint8_t span;   /* pw_span */
    uint8_t scalar; /* bit i: operand i is one number */
    uint8_t in;
    uint8_t dst, a, b, c;
    uint8_t dtype;  /* CAST */
    bool is_placed; /* LOAD: read where it lies */
    uint32_t threshold;
    double number;
    hl_rng_key key;
} pw_step;

/* Where a chunk's elements stand in the stream of random numbers. */
typedef struct pw_random {
    uint32_t step;
    uint64_t first_sample;
    int64_t per_sample;
    int64_t begin; /* flat index of the chunk's first element */
} pw_random;

/* Steps that pass their result on in registers, PW_GROUP vectors at a time: each link is a function
 * that ends in a call of the next one, with the group as its arguments. */
enum { PW_GROUP = 8, PW_LINKS = 3 * PW_VALUES };
typedef struct pw_link pw_link;
typedef void (*pw_link_fn)(hl_v v0, hl_v v1, hl_v v2, hl_v v3, hl_v v4, hl_v v5, hl_v v6, hl_v v7,
                           const pw_link *link, void *const *at, int64_t i);
struct pw_link {
    pw_link_fn fn;
    uint8_t other[2]; /* operands from memory, or where to store */
    uint8_t scalar;   /* bit i: other i is one number */
};

typedef enum pw_link_end { PW_LINK_LOAD, PW_LINK_STORE, PW_LINK_RETURN } pw_link_end;
pw_link_fn HL_ISA_NAME(hl_pw_link_end)(pw_link_end end);
/* The link of a micro-op whose operand `position` is what the link before it passes on; NULL: there
 * is none. */
pw_link_fn HL_ISA_NAME(hl_pw_link_find)(int op, int position);
/* Runs the chain on whole groups of [0, n); returns the elements done. */
int64_t HL_ISA_NAME(hl_pw_run_chain)(const pw_link *link, void *const *at, int64_t n);

/* dst[0, n) of a step that is not LOAD. Buffers may equal each other, never overlap otherwise;
 * exactly n elements are written. */
typedef void (*pw_run_fn)(const pw_step *step, void *const *at, int64_t n, const pw_random *random);
void HL_ISA_NAME(hl_pw_run_f32)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random);
void HL_ISA_NAME(hl_pw_run_f64)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random);
void HL_ISA_NAME(hl_pw_run_i64)(const pw_step *step, void *const *at, int64_t n,
                                const pw_random *random);

/* Contiguous conversion from and to memory. */
void HL_ISA_NAME(hl_pw_load)(hl_pw_kind kind, void *dst, hl_dtype dtype, const void *src,
                             int64_t n);
void HL_ISA_NAME(hl_pw_store)(hl_pw_kind kind, hl_dtype dtype, void *dst, const void *src,
                              int64_t n);

/* Sums of a chunk of n_rows rows of n_cols, in an order that depends on these two alone:
 * acc[col] += , acc[row] = or +=, *acc += (double for the float kinds, int64 for I64). */
void HL_ISA_NAME(hl_pw_sum_rows)(hl_pw_kind kind, void *acc, const void *src, int64_t n_rows,
                                 int64_t n_cols);
void HL_ISA_NAME(hl_pw_sum_cols)(hl_pw_kind kind, void *acc, const void *src, int64_t n_rows,
                                 int64_t n_cols, bool adds);
void HL_ISA_NAME(hl_pw_sum_all)(hl_pw_kind kind, void *acc, const void *src, int64_t n);

#endif
