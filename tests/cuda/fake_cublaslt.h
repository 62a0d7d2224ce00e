/* A cuBLASLt for the emulated driver, as a library of its own (libcublasLt_fake.so, which
 * HOTLOOP_CUBLASLT_PATH names): every descriptor, layout, pointer and size is checked at least as
 * strictly as the real one does, products are computed by a stream's work on emulated memory, gelu
 * in double by the manual's formula, and a mask's bits lie in an order that nobody else knows. A
 * bias, sums and an aux have to lie at 16 bytes, and matrices as the preference says.
 *
 * Heuristics give several algorithms. Number 0 is slow; 1 wants workspace; 2 is refused when it
 * runs; 3 wants operands at whole 16 bytes and some workspace, and is fastest; 4 and 5 appear only
 * where a preference was not set; 6 is slowest. An algorithm's kernel that first runs within a
 * capture is a complaint, as is one that runs on another problem than it was asked for. */
#ifndef HL_TESTS_CUDA_FAKE_CUBLASLT_H
#define HL_TESTS_CUDA_FAKE_CUBLASLT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hl_fake_lt_config {
    int refused[2];    /* epilogues that heuristics know no algorithm for; 0: none */
    int failing[2];    /* epilogues of which every algorithm is refused when it runs; 0: none */
    int n_broken;      /* the first n algorithms are refused when they run */
    bool is_silent;    /* no handle: cublasLtCreate fails */
    bool drops_nan;    /* relu and gelu make 0 of a NaN */
    unsigned varying;  /* bit i: algorithm i cuts sums elsewhere each time it runs */
    double ms[7];      /* that each algorithm takes; 0: what the table says */
    int slow_epilogue; /* products with this one take so many times as long; 0: none */
    double slowness;
    /* The clock: until so many ms of work are done everything takes three times as long, and each
     * ms makes what comes later take so many times as long. */
    double cold_ms, drift;
} hl_fake_lt_config;
typedef struct hl_fake_lt_counts {
    int64_t calls, searches, products, live;
    int64_t problems; /* different ones among the searches */
    int last_algo;    /* number of the algorithm that ran last */
} hl_fake_lt_counts;

/* By dlsym from the library. For Python: hl_fake_lt_configure(text) resets it to what the text
 * says, "drops_nan=1", "failing=134", "slow=134:4"; "" is nothing. */
/* Counts start again; kernels are unloaded. */
typedef void (*hl_fake_lt_reset_fn)(const hl_fake_lt_config *config);
/* The k-th call that can fail fails with `status`, or it and all later; 0: none. Returns how many
 * were seen since the last call. */
typedef int64_t (*hl_fake_lt_fail_fn)(int64_t k, bool sticky, int status);
typedef hl_fake_lt_counts (*hl_fake_lt_counts_fn)(void);

#endif
