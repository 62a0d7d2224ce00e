/* Random arrays: initial values and permutations, from the core's Philox streams. */
#include "args.h"
#include "base/rng.h"
#include "numpy_api.h"

typedef struct random_draw {
    hl_rng_key key;
    int64_t n;
    double number[4];
    PyObject *array;
    void *data;
} random_draw;

/* seed, stream, n, then n_numbers doubles. */
static bool begin_draw(hl_py_state *state, PyObject *const *given, int n_numbers, random_draw *out)
{
    static const char *const what[] = {"first number", "second number", "low", "high"};
    uint64_t seed;
    const char *stream;
    if (!hl_py_seed(state, given[0], "seed", &seed) ||
        !hl_py_text(state, given[1], "stream", &stream) ||
        !hl_py_int(state, given[2], "n", 0, INT64_MAX / 8, &out->n))
        return false;
    for (int i = 0; i < n_numbers; i++)
        if (!hl_py_finite(state, given[3 + i], what[i], &out->number[i])) return false;
    out->key = hl_rng_key_make(seed, stream);
    return true;
}

static bool make_room(random_draw *draw)
{
    hl_shape shape = hl_shape_1d(draw->n);
    draw->array = hl_py_array_new(HL_DTYPE_F64, &shape, &draw->data);
    return draw->array != NULL;
}

HL_PY_FAST_KEYWORDS(hl_py_random_uniform)
{
    static const hl_py_signature signature = {.function = "random_uniform",
                                              .n_positional = 5,
                                              .n_required = 5,
                                              .n_params = 5,
                                              .names = {HL_PY_NAME_seed, HL_PY_NAME_stream,
                                                        HL_PY_NAME_n, HL_PY_NAME_low,
                                                        HL_PY_NAME_high}};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[5];
    random_draw d;
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given) ||
        !begin_draw(state, given, 2, &d))
        return NULL;
    if (d.number[0] > d.number[1])
        return hl_py_fail(state, HL_ERROR_CONFIG, "low: must not exceed high, got %g and %g",
                          d.number[0], d.number[1]);
    if (!make_room(&d)) return NULL;
    HL_PY_WITHOUT_GIL(hl_rng_fill_uniform(d.key, d.number[0], d.number[1], d.data, d.n));
    return d.array;
}

HL_PY_FAST_KEYWORDS(hl_py_random_normal)
{
    static const hl_py_signature signature = {.function = "random_normal",
                                              .n_positional = 5,
                                              .n_required = 5,
                                              .n_params = 5,
                                              .names = {HL_PY_NAME_seed, HL_PY_NAME_stream,
                                                        HL_PY_NAME_n, HL_PY_NAME_mean,
                                                        HL_PY_NAME_std}};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[5];
    random_draw d;
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given) ||
        !begin_draw(state, given, 2, &d))
        return NULL;
    if (d.number[1] < 0)
        return hl_py_fail(state, HL_ERROR_CONFIG, "std: must not be negative, got %g", d.number[1]);
    if (!make_room(&d)) return NULL;
    HL_PY_WITHOUT_GIL(hl_rng_fill_normal(d.key, d.number[0], d.number[1], d.data, d.n));
    return d.array;
}

HL_PY_FAST_KEYWORDS(hl_py_random_trunc_normal)
{
    static const hl_py_signature signature = {
        .function = "random_trunc_normal",
        .n_positional = 7,
        .n_required = 7,
        .n_params = 7,
        .names = {HL_PY_NAME_seed, HL_PY_NAME_stream, HL_PY_NAME_n, HL_PY_NAME_mean, HL_PY_NAME_std,
                  HL_PY_NAME_low, HL_PY_NAME_high}};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[7];
    random_draw d;
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given) ||
        !begin_draw(state, given, 4, &d))
        return NULL;
    if (d.number[1] <= 0 || d.number[2] >= d.number[3])
        return hl_py_fail(state, HL_ERROR_CONFIG,
                          "trunc_normal: std must be above 0 and low below high, got %g, %g, %g",
                          d.number[1], d.number[2], d.number[3]);
    if (!make_room(&d)) return NULL;
    HL_PY_WITHOUT_GIL(hl_rng_fill_trunc_normal(d.key, d.number[0], d.number[1], d.number[2],
                                               d.number[3], d.data, d.n));
    return d.array;
}

static void fill_permutation(hl_rng_key key, uint64_t epoch, int64_t n, int64_t *out)
{
    hl_permutation permutation;
    hl_permutation_init(&permutation, key, epoch, (uint64_t)n);
    hl_permutation_fill(&permutation, 0, n, out);
}

HL_PY_FAST_KEYWORDS(hl_py_permutation)
{
    static const hl_py_signature signature = {
        .function = "permutation",
        .n_positional = 4,
        .n_required = 4,
        .n_params = 4,
        .names = {HL_PY_NAME_seed, HL_PY_NAME_stream, HL_PY_NAME_epoch, HL_PY_NAME_n}};
    hl_py_state *state = hl_py_state_of_module(module);
    PyObject *given[4];
    uint64_t seed, epoch;
    const char *stream;
    int64_t n;
    void *data;
    if (!hl_py_args_parse(state, &signature, args, n_args, keywords, given) ||
        !hl_py_seed(state, given[0], "seed", &seed) ||
        !hl_py_text(state, given[1], "stream", &stream) ||
        !hl_py_seed(state, given[2], "epoch", &epoch) ||
        !hl_py_int(state, given[3], "n", 0, INT64_MAX / 8, &n))
        return NULL;
    hl_shape shape = hl_shape_1d(n);
    PyObject *array = hl_py_array_new(HL_DTYPE_I64, &shape, &data);
    if (!array) return NULL;
    HL_PY_WITHOUT_GIL(fill_permutation(hl_rng_key_make(seed, stream), epoch, n, data));
    return array;
}
