/* A cuDNN for the emulated driver, as a library of its own (libcudnn_fake.so, which
 * HOTLOOP_CUDNN_PATH names): the backend API as far as convolutions and
 * attention need it, and recurrent layers. Every descriptor,
 * attribute, pointer and size is checked at least as strictly as the real one does: attributes have
 * their types and sizes, what is linked is finalized, tensors fit the geometry and lie in memory,
 * as aligned as was said. Convolutions, the pointwise steps behind them and the sums of their
 * channels are computed by a stream's work on emulated memory.
 *
 * Heuristics give several engines, of which some must not be taken: see engine_table. An engine's
 * kernel that first runs within a capture is a complaint. */
#ifndef HL_TESTS_CUDA_FAKE_CUDNN_H
#define HL_TESTS_CUDA_FAKE_CUDNN_H

#include <stdbool.h>
#include <stdint.h>

enum { HL_FAKE_DNN_ENGINES = 11, HL_FAKE_DNN_ALGOS = 4 };
typedef struct hl_fake_dnn_config {
    bool is_silent;                 /* no handle: cudnnCreate fails */
    bool has_no_steps;              /* heuristics know no engine for pointwise steps, */
    bool has_no_sums;               /* or for sums */
    bool runs_nothing;              /* every engine refuses when it runs */
    bool drops_nan;                 /* relu makes 0 of a NaN */
    unsigned varying;               /* bit i: engine i cuts sums elsewhere each time it runs */
    double ms[HL_FAKE_DNN_ENGINES]; /* that each engine takes; 0: what the table says */
    double step_ms;                 /* that steps and sums take longer */
    int64_t plain_bytes;            /* of workspace more, that engines want without them */
    /* Of recurrent layers, bit i: algorithm i is not there, refuses to run, gives other bits. */
    unsigned rnn_lacks, rnn_refuses, rnn_varies;
    double rnn_ms[HL_FAKE_DNN_ALGOS]; /* 0: what fake_cudnn_rnn.c says */
    int64_t rnn_work_bytes;           /* of workspace more, that most algorithms want */
} hl_fake_dnn_config;
typedef struct hl_fake_dnn_counts {
    int64_t calls, searches, plans, runs, live;
    int64_t problems; /* different ones among the searches */
    int last_engine;  /* that ran last */
    int n_steps;      /* behind the convolution that ran last, */
    bool has_sums;    /* which made sums */
    /* Of recurrent layers, by algorithm. */
    int64_t forwards[HL_FAKE_DNN_ALGOS], backwards[HL_FAKE_DNN_ALGOS];
} hl_fake_dnn_counts;

/* By dlsym from the library. For Python: hl_fake_dnn_configure(text) resets it to what the text
 * says: "drops_nan=1", "no_steps=1", "no_sums=1", "runs_nothing=1"; of recurrent layers
 * "rnn_lacks=3", "rnn_refuses=3", "rnn_varies=3", "rnn_ms=1,2,3,4"; "" is nothing. */
/* Counts start again; kernels are unloaded. */
typedef void (*hl_fake_dnn_reset_fn)(const hl_fake_dnn_config *config);
/* The k-th call that can fail fails with `status`, or it and all later; 0: none. Returns how many
 * were seen since the last call. */
typedef int64_t (*hl_fake_dnn_fail_fn)(int64_t k, bool sticky, int status);
typedef hl_fake_dnn_counts (*hl_fake_dnn_counts_fn)(void);

#endif
