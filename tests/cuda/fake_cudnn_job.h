/* Inside of the fake cuDNN: operation graphs as descriptors are finalized to them, and one that
 * runs. */
#ifndef HL_TESTS_CUDA_FAKE_CUDNN_JOB_H
#define HL_TESTS_CUDA_FAKE_CUDNN_JOB_H

#include <stdbool.h>

#include "kernels/cuda/cudnn_types.h"

enum { MAX_DIMS = 5, MAX_SPATIAL = 3, MAX_STEPS = 5, MAX_TENSORS = 12, X = 0, W, Y };

typedef struct tensor {
    int64_t id, align, dim[MAX_DIMS], stride[MAX_DIMS];
    int64_t type, rank;
    int64_t is_virtual, is_by_value;
} tensor;

typedef struct geometry {
    int64_t n, before[MAX_SPATIAL], after[MAX_SPATIAL], stride[MAX_SPATIAL], dilation[MAX_SPATIAL];
} geometry;

/* A convolution, (mode >= 0) a pointwise step on x, or sums of x; 64-bit members alone, so that it
 * has no holes. */
typedef struct operation {
    int64_t type, mode, reads;
    geometry of;
    tensor t[3]; /* x, w, y; of a step: x, what it reads beside, y; x, its sums, its squares' */
} operation;

/* Attention or its gradient: its tensors in the order of the node's arguments, and numbers that are
 * given by value. As a graph within: scores and what they become, x and y. */
enum { MAX_ARGS = 9 };
typedef struct attention {
    int64_t type, n; /* n: arguments */
    int64_t is_causal;
    tensor arg[MAX_ARGS], scale, hidden, x, y;
} attention;

typedef struct problem {
    int64_t n;        /* the convolution and its steps; 0: there is attention instead */
    int64_t has_sums; /* then one more */
    operation op[2 + MAX_STEPS];
    attention attention;
} problem;

static inline size_t bytes_of(int64_t type)
{
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

/* Which of an operation's tensors is its result. */
static inline int find_result(const operation *op)
{
    return op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR     ? X
           : op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR ? W
                                                                                        : Y;
}

typedef struct job {
    problem p;
    void *at[2 + MAX_STEPS][3]; /* of each operation's tensors; NULL: virtual */
    void *arg[MAX_ARGS];        /* of attention's */
    float scale, hidden;
    void *workspace;
    int64_t workspace_bytes;
    int engine;
    int64_t shift;              /* of where sums are cut */
    bool is_rounded, drops_nan; /* operands to TF32; relu makes 0 of a NaN */
} job;

cudnnStatus_t hl_fake_dnn_complain(const char *what);
/* Counts a call that may fail; what it fails with. */
cudnnStatus_t hl_fake_dnn_begin(void);
void hl_fake_dnn_count_live(int n);
void hl_fake_dnn_count_rnn(int algo, bool is_forward);
/* False: there is no such handle. */
bool hl_fake_dnn_stream(cudnnHandle_t handle, CUstream *out_stream);
const struct hl_fake_dnn_config *hl_fake_dnn_asked(void);

/* A stream's work: computes a job's result. */
const char *hl_fake_dnn_run(void *job);
void hl_fake_dnn_attend(const job *job);

float hl_fake_dnn_load(const void *p, int64_t type, int64_t i);
void hl_fake_dnn_store(void *p, int64_t type, int64_t i, float value);

#endif
