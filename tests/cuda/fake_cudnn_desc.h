/* Inside of the fake cuDNN: descriptors, and what their finalizing needs. */
#ifndef HL_TESTS_CUDA_FAKE_CUDNN_DESC_H
#define HL_TESTS_CUDA_FAKE_CUDNN_DESC_H

#include "tests/cuda/fake_cudnn_job.h"

typedef struct attribute {
    int name, type;
    int64_t n;
    unsigned char data[256];
} attribute;

enum { MAX_ATTRIBUTES = 16, MAGIC = 0xD35C };
typedef struct desc {
    int magic, type;
    bool is_final;
    int n;
    attribute at[MAX_ATTRIBUTES];
    /* What it was finalized to. */
    union {
        tensor tensor;
        geometry geometry;
        int64_t mode; /* of a pointwise descriptor */
        operation op;
        attention attention;
        problem graph;
    } as;
    int engine; /* of an engine, a configuration, a plan */
    int64_t knob[2];
    int heur_mode;
} desc;

/* An attribute as numbers of 64 bits; how many, 0: it was not set. */
int64_t hl_fake_dnn_numbers(const desc *d, int name, int64_t *out);
/* NULL: it was not set. */
const desc *hl_fake_dnn_link(const desc *d, int name, int type);

/* Of attention's operation, and of the mask's within. */
cudnnStatus_t hl_fake_dnn_finalize_attention(desc *d);
cudnnStatus_t hl_fake_dnn_finalize_band(desc *d);

#endif
