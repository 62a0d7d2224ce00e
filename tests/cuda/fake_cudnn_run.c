/* Convolutions and pointwise steps as the fake cuDNN computes them: sums in float32, by definition.
 */
#include <math.h>

#include "tests/cuda/fake_cudnn_job.h"
#include "tests/cuda/fake_numbers.h"

float hl_fake_dnn_load(const void *p, int64_t type, int64_t i)
{
    if (type == CUDNN_DATA_BFLOAT16) return hl_bf16_to_f32(((const uint16_t *)p)[i]);
    if (type == CUDNN_DATA_HALF) return hl_f16_to_f32(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

void hl_fake_dnn_store(void *p, int64_t type, int64_t i, float value)
{
    if (type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)p)[i] = hl_f32_to_bf16(value);
    else if (type == CUDNN_DATA_HALF)
        ((uint16_t *)p)[i] = hl_f32_to_f16(value);
    else
        ((float *)p)[i] = value;
}

/* A place in a tensor by its coordinates; 1 wide dims have one for all. */
static int64_t place(const tensor *t, const int64_t *at)
{
    int64_t i = 0;
    for (int64_t d = 0; d < t->rank; d++) i += t->dim[d] == 1 ? 0 : at[d] * t->stride[d];
    return i;
}

/* The next coordinates in row-major order of n dims; false: there are none. */
static bool step_on(const int64_t *dims, int64_t n, int64_t *at)
{
    for (int64_t d = n - 1; d >= 0; d--) {
        if (++at[d] < dims[d]) return true;
        at[d] = 0;
    }
    return false;
}

typedef struct summing {
    const job *job;
    float part[2];
    int64_t n, cut; /* terms so far; those before the cut are the second part's */
} summing;

static void add_product(summing *s, int a, const int64_t *at_a, int b, const int64_t *at_b)
{
    const operation *op = &s->job->p.op[0];
    const tensor *ta = &op->t[a], *tb = &op->t[b];
    float x = hl_fake_dnn_load(s->job->at[0][a], ta->type, place(ta, at_a)),
          y = hl_fake_dnn_load(s->job->at[0][b], tb->type, place(tb, at_b));
    if (s->job->is_rounded) x = round_to_tf32(x), y = round_to_tf32(y);
    s->part[s->n++ < s->cut] += x * y;
}

/* Where tap k of output o reads, all spatial dims; false: padding. */
static bool find_input(const operation *op, const int64_t *o, const int64_t *k, int64_t *out_x)
{
    const geometry *g = &op->of;
    for (int64_t d = 0; d < g->n; d++) {
        out_x[d] = o[d] * g->stride[d] - g->before[d] + k[d] * g->dilation[d];
        if (out_x[d] < 0 || out_x[d] >= op->t[X].dim[d + 2]) return false;
    }
    return true;
}

/* The output whose tap k reads this input. */
static bool find_output(const operation *op, const int64_t *x, const int64_t *k, int64_t *out_o)
{
    const geometry *g = &op->of;
    for (int64_t d = 0; d < g->n; d++) {
        int64_t from = x[d] + g->before[d] - k[d] * g->dilation[d];
        if (from < 0 || from % g->stride[d]) return false;
        out_o[d] = from / g->stride[d];
        if (out_o[d] >= op->t[Y].dim[d + 2]) return false;
    }
    return true;
}

/* Element `at` of the convolution's result. */
static void sum_forward(summing *s, const operation *op, const int64_t *at)
{
    int64_t in = op->t[W].dim[1], out = op->t[Y].dim[1] / (op->t[X].dim[1] / in);
    int64_t x[MAX_DIMS] = {at[0]}, w[MAX_DIMS] = {at[1]};
    do
        for (int64_t c = 0; c < in && find_input(op, at + 2, w + 2, x + 2); c++) {
            w[1] = c, x[1] = at[1] / out * in + c;
            add_product(s, X, x, W, w);
        }
    while (step_on(op->t[W].dim + 2, op->of.n, w + 2));
}

static void sum_data(summing *s, const operation *op, const int64_t *at)
{
    int64_t in = op->t[W].dim[1], out = op->t[Y].dim[1] / (op->t[X].dim[1] / in);
    int64_t y[MAX_DIMS] = {at[0]}, w[MAX_DIMS] = {0, at[1] % in};
    do
        for (int64_t c = 0; c < out && find_output(op, at + 2, w + 2, y + 2); c++) {
            w[0] = y[1] = at[1] / in * out + c;
            add_product(s, Y, y, W, w);
        }
    while (step_on(op->t[W].dim + 2, op->of.n, w + 2));
}

static void sum_weight(summing *s, const operation *op, const int64_t *at)
{
    int64_t in = op->t[W].dim[1], out = op->t[Y].dim[1] / (op->t[X].dim[1] / in);
    int64_t y[MAX_DIMS] = {0, at[0]}, x[MAX_DIMS] = {0, at[0] / out * in + at[1]};
    for (int64_t n = 0; n < op->t[Y].dim[0]; n++) {
        x[0] = y[0] = n;
        do
            if (find_input(op, y + 2, at + 2, x + 2)) add_product(s, Y, y, X, x);
        while (step_on(op->t[Y].dim + 2, op->of.n, y + 2));
    }
}

static float apply_step(const job *j, int64_t i, const int64_t *at, float value)
{
    const operation *op = &j->p.op[i];
    float b = op->reads ? hl_fake_dnn_load(j->at[i][W], op->t[W].type, place(&op->t[W], at)) : 0;
    if (op->mode == CUDNN_POINTWISE_ADD) return value + b;
    if (op->mode == CUDNN_POINTWISE_MUL) return value * b;
    if (isnan(value)) return j->drops_nan ? 0 : value;
    return value > 0 ? value : 0;
}

const char *hl_fake_dnn_run(void *context)
{
    const job *j = context;
    if (j->workspace_bytes) memset(j->workspace, 0xFF, (size_t)j->workspace_bytes);
    if (!j->p.n) {
        hl_fake_dnn_attend(j);
        return NULL;
    }
    const operation *op = &j->p.op[0], *last = &j->p.op[j->p.n - 1];
    const tensor *result = &last->t[find_result(last)];
    void *to = j->at[j->p.n - 1][find_result(last)];
    float *sums = j->at[j->p.n][W], *squares = j->at[j->p.n][Y];
    int64_t at[MAX_DIMS] = {0};
    for (int64_t c = 0; j->p.has_sums && c < result->dim[1]; c++) sums[c] = squares[c] = 0;
    do {
        summing s = {.job = j, .cut = 1 + (j->engine + j->shift) % 7};
        if (find_result(op) == Y)
            sum_forward(&s, op, at);
        else if (find_result(op) == X)
            sum_data(&s, op, at);
        else
            sum_weight(&s, op, at);
        float value = s.part[0] + s.part[1];
        for (int64_t i = 1; i < j->p.n; i++) value = apply_step(j, i, at, value);
        hl_fake_dnn_store(to, result->type, place(result, at), value);
        if (j->p.has_sums) sums[at[1]] += value, squares[at[1]] += value * value;
    } while (step_on(result->dim, result->rank, at));
    return NULL;
}
