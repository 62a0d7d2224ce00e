/* Reductions, medians, moments, and running sums; other sums than those in the midst of others are
 * the pointwise kernels'.
 *
 * An array is seen as (O,N,I): the reduced axes, which must stand together, are N. With I = 1 a
 * group is a row; else I groups lie side by side and are reduced together, a chunk of columns at a
 * time. Work is cut along O, or along I where there is no O. Moments over leading axes, the batch
 * norm's, are the exception: they are cut along N, each grain of rows giving a partial (moments.h).
 */
#include "kernels/cpu/moments.h"
#include "kernels/cpu/pointwise_chunk.h"

enum { N_CHUNK = 256 };

typedef struct reduce_state {
    hl_op op;
    int64_t O, N, I;
    hl_pw_kind kind;
    hl_dtype dtype, out_dtype;
    bool is_reverse, by_column;
    hl_moments moments; /* over leading axes */
} reduce_state;

static bool make_reduce(const hl_graph *graph, const hl_node *node, reduce_state *out_state)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    reduce_state *state = out_state;
    *state = (reduce_state){.op = node->op, .dtype = x->dtype};
    state->out_dtype = hl_node_out_type(graph, node, 0)->dtype;
    hl_ints axes = hl_node_axes(node);
    if (!hl_shape_split(&x->shape, axes.at, axes.n, &state->O, &state->N, &state->I)) return false;
    state->is_reverse = node->op == HL_OP_CUMSUM && hl_scan_attrs(node)->reverse;
    bool adds = node->op == HL_OP_CUMSUM || node->op == HL_OP_SUM;
    state->kind = !hl_dtype_is_float(x->dtype)       ? HL_PW_I64
                  : x->dtype == HL_DTYPE_F64 || adds ? HL_PW_F64
                                                     : HL_PW_F32;
    if (!hl_dtype_is_float(x->dtype) && hl_dtype_is_float(state->out_dtype))
        state->kind = HL_PW_F64;
    /* Running sums over columns would interleave their rows, so they stay whole. */
    state->by_column = state->O == 1 && state->I > 1 && node->op != HL_OP_CUMSUM;
    state->moments = hl_moments_make(state->N, state->I, hl_cpu_grain(state->N));
    return true;
}

/* ---- columns [first, first + n), n <= N_CHUNK, of one (N,I) group ---- */

static size_t element_of(hl_pw_kind kind)
{
    return kind == HL_PW_F32 ? sizeof(float) : 8;
}

/* Row k's elements as values of the kind: where they lie, or converted into `room`. */
static const void *read_part(const reduce_state *state, const unsigned char *x, int64_t at,
                             int64_t n, void *room)
{
    x += (size_t)at * hl_dtype_bytes(state->dtype);
    if (state->kind == HL_PW_F32 && state->dtype == HL_DTYPE_F32) return x;
    HL_ISA_NAME(hl_pw_load)(state->kind, room, state->dtype, x, n);
    return room;
}

#define FOLD(T, acc, value, n)                                                                     \
    do {                                                                                           \
        T *to = (T *)(acc);                                                                        \
        const T *from = (const T *)(value);                                                        \
        if (op == HL_OP_PROD) {                                                                    \
            for (int64_t i = 0; i < (n); i++) to[i] *= from[i];                                    \
        } else if (op == HL_OP_SUM) {                                                              \
            for (int64_t i = 0; i < (n); i++) to[i] += from[i];                                    \
        } else if (op == HL_OP_MAX) {                                                              \
            for (int64_t i = 0; i < (n); i++) {                                                    \
                to[i] = to[i] != to[i] || to[i] > from[i] ? to[i] : from[i];                       \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < (n); i++) {                                                    \
                to[i] = to[i] != to[i] || to[i] < from[i] ? to[i] : from[i];                       \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* acc[i] = fold of acc[i] and value[i]; integers wrap. */
static void fold_part(hl_op op, hl_pw_kind kind, void *acc, const void *value, int64_t n)
{
    if (kind == HL_PW_F32) {
        FOLD(float, acc, value, n);
    } else if (kind == HL_PW_F64) {
        FOLD(double, acc, value, n);
    } else if (op == HL_OP_PROD || op == HL_OP_SUM) {
        FOLD(uint64_t, acc, value, n);
    } else {
        FOLD(int64_t, acc, value, n);
    }
}

static void start_fold(hl_op op, hl_pw_kind kind, void *acc, int64_t n)
{
    bool is_extreme = op == HL_OP_MAX || op == HL_OP_MIN;
    double number = !is_extreme ? op == HL_OP_PROD : op == HL_OP_MAX ? -INFINITY : INFINITY;
    int64_t integer = !is_extreme ? op == HL_OP_PROD : op == HL_OP_MAX ? INT64_MIN : INT64_MAX;
    for (int64_t i = 0; i < n; i++) {
        if (kind == HL_PW_F32) {
            ((float *)acc)[i] = (float)number;
        } else if (kind == HL_PW_F64) {
            ((double *)acc)[i] = number;
        } else {
            ((int64_t *)acc)[i] = integer;
        }
    }
}

typedef union chunk {
    double number[N_CHUNK];
    int64_t integer[N_CHUNK];
    float single[N_CHUNK];
} chunk;

static void fold_columns(const reduce_state *state, const unsigned char *x, int64_t first,
                         int64_t n, unsigned char *out)
{
    chunk acc, room;
    start_fold(state->op, state->kind, &acc, n);
    for (int64_t k = 0; k < state->N; k++) {
        const void *part = read_part(state, x, k * state->I + first, n, &room);
        fold_part(state->op, state->kind, &acc, part, n);
    }
    HL_ISA_NAME(hl_pw_store)(state->kind, state->out_dtype, out, &acc, n);
}

/* One row: N_CHUNK partial results side by side, then folded onto each other by halves; acc's first
 * is the result. */
static void fold_row(const reduce_state *state, hl_op op, const unsigned char *x, chunk *acc)
{
    chunk room;
    size_t bytes = element_of(state->kind);
    int64_t width = hl_cpu_min(N_CHUNK, state->N), n = 1;
    start_fold(op, state->kind, acc, hl_cpu_max(width, 1));
    for (int64_t k = 0; k < state->N; k += N_CHUNK) {
        int64_t count = hl_cpu_min(N_CHUNK, state->N - k);
        fold_part(op, state->kind, acc, read_part(state, x, k, count, &room), count);
    }
    while (n < width) n *= 2;
    for (n /= 2; n > 0; n /= 2) {
        int64_t count = hl_cpu_min(n, width - n);
        const unsigned char *upper = (const unsigned char *)acc + (size_t)n * bytes;
        if (count > 0) fold_part(op, state->kind, acc, upper, count);
        width = hl_cpu_min(width, n);
    }
}

/* Whether an element beats the best so far: strictly, so that the first of equals wins; a NaN
 * beats every number. */
#define BEATS(a, b)                                                                                \
    (!((b) != (b)) && ((a) != (a) || (state->op == HL_OP_ARGMAX ? (a) > (b) : (a) < (b))))
#define FIND(T, member)                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T candidate = ((const T *)value)[i];                                                       \
        if (k > 0 && !BEATS(candidate, best.member[i])) continue;                                  \
        best.member[i] = candidate;                                                                \
        place[i] = k;                                                                              \
    }

static void find_columns(const reduce_state *state, const unsigned char *x, int64_t first,
                         int64_t n, unsigned char *out)
{
    chunk best, room;
    int64_t place[N_CHUNK] = {0};
    for (int64_t k = 0; k < state->N; k++) {
        const void *value = read_part(state, x, k * state->I + first, n, &room);
        if (state->kind == HL_PW_F32) {
            FIND(float, single)
        } else if (state->kind == HL_PW_F64) {
            FIND(double, number)
        } else {
            FIND(int64_t, integer)
        }
    }
    HL_ISA_NAME(hl_pw_store)(HL_PW_I64, state->out_dtype, out, place, n);
}

#define FIND_ROW(T, member)                                                                        \
    for (int64_t i = 0; i < count; i++) {                                                          \
        T candidate = ((const T *)value)[i];                                                       \
        if (k + i > 0 && !BEATS(candidate, best.member[0])) continue;                              \
        best.member[0] = candidate;                                                                \
        place = k + i;                                                                             \
    }

static void find_row(const reduce_state *state, const unsigned char *x, unsigned char *out)
{
    chunk best, room;
    int64_t place = 0;
    for (int64_t k = 0; k < state->N; k += N_CHUNK) {
        int64_t count = hl_cpu_min(N_CHUNK, state->N - k);
        const void *value = read_part(state, x, k, count, &room);
        if (state->kind == HL_PW_F32) {
            FIND_ROW(float, single)
        } else if (state->kind == HL_PW_F64) {
            FIND_ROW(double, number)
        } else {
            FIND_ROW(int64_t, integer)
        }
    }
    HL_ISA_NAME(hl_pw_store)(HL_PW_I64, state->out_dtype, out, &place, 1);
}

/* ---- running sums, in float64 or int64 ---- */

static void scan_columns(const reduce_state *state, const unsigned char *x, int64_t first,
                         int64_t n, unsigned char *out)
{
    chunk sum, room;
    memset(&sum, 0, sizeof sum);
    for (int64_t step = 0; step < state->N; step++) {
        int64_t k = state->is_reverse ? state->N - 1 - step : step, at = k * state->I + first;
        const chunk *value = read_part(state, x, at, n, &room);
        for (int64_t i = 0; i < n; i++) {
            if (state->kind == HL_PW_I64) {
                uint64_t total = (uint64_t)sum.integer[i] + (uint64_t)value->integer[i];
                sum.integer[i] = (int64_t)total;
            } else {
                sum.number[i] += value->number[i];
            }
        }
        unsigned char *to = out + (size_t)at * hl_dtype_bytes(state->out_dtype);
        HL_ISA_NAME(hl_pw_store)(state->kind, state->out_dtype, to, &sum, n);
    }
}

static void scan_row(const reduce_state *state, const unsigned char *x, unsigned char *out)
{
    chunk value;
    double sum = 0;
    uint64_t sum_int = 0;
    int64_t n_chunks = hl_cpu_ceil_div(state->N, N_CHUNK);
    for (int64_t c = 0; c < n_chunks; c++) {
        int64_t at = (state->is_reverse ? n_chunks - 1 - c : c) * N_CHUNK;
        int64_t n = hl_cpu_min(N_CHUNK, state->N - at);
        read_part(state, x, at, n, &value);
        for (int64_t step = 0; step < n; step++) {
            int64_t i = state->is_reverse ? n - 1 - step : step;
            if (state->kind == HL_PW_I64) {
                sum_int += (uint64_t)value.integer[i];
                value.integer[i] = (int64_t)sum_int;
            } else {
                sum += value.number[i];
                value.number[i] = sum;
            }
        }
        unsigned char *to = out + (size_t)at * hl_dtype_bytes(state->out_dtype);
        HL_ISA_NAME(hl_pw_store)(state->kind, state->out_dtype, to, &value, n);
    }
}

/* ---- groups ---- */

/* Columns [begin, end) of group o. */
static void run_columns(const reduce_state *state, void *const *args, int64_t o, int64_t begin,
                        int64_t end)
{
    size_t bytes = hl_dtype_bytes(state->dtype), out_bytes = hl_dtype_bytes(state->out_dtype);
    const unsigned char *x = args[0];
    unsigned char *out = args[1];
    x += (size_t)(o * state->N * state->I) * bytes;
    for (int64_t first = begin; first < end; first += N_CHUNK) {
        int64_t n = hl_cpu_min(N_CHUNK, end - first);
        unsigned char *to = out + (size_t)(o * state->I + first) * out_bytes;
        if (state->op == HL_OP_CUMSUM) {
            scan_columns(state, x, first, n, out + (size_t)(o * state->N * state->I) * out_bytes);
        } else if (state->op == HL_OP_ARGMAX || state->op == HL_OP_ARGMIN) {
            find_columns(state, x, first, n, to);
        } else {
            fold_columns(state, x, first, n, to);
        }
    }
}

static void run_row(const reduce_state *state, void *const *args, int64_t o)
{
    size_t bytes = hl_dtype_bytes(state->dtype), out_bytes = hl_dtype_bytes(state->out_dtype);
    const unsigned char *x = (const unsigned char *)args[0] + (size_t)(o * state->N) * bytes;
    unsigned char *out = args[1];
    if (state->op == HL_OP_CUMSUM) {
        scan_row(state, x, out + (size_t)(o * state->N) * out_bytes);
    } else if (state->op == HL_OP_ARGMAX || state->op == HL_OP_ARGMIN) {
        find_row(state, x, out + (size_t)o * out_bytes);
    } else {
        chunk acc;
        fold_row(state, state->op, x, &acc);
        out += (size_t)o * out_bytes;
        HL_ISA_NAME(hl_pw_store)(state->kind, state->out_dtype, out, &acc, 1);
    }
}

static void run_reduce(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    (void)launch;
    const reduce_state *reduce = state->impl;
    if (reduce->by_column) {
        run_columns(reduce, args, 0, begin, hl_cpu_min(end, reduce->I));
        return;
    }
    end = hl_cpu_min(end, reduce->O);
    for (int64_t o = begin; o < end; o++) {
        if (reduce->I == 1) {
            run_row(reduce, args, o);
        } else {
            run_columns(reduce, args, o, 0, reduce->I);
        }
    }
}

/* ---- medians of rows ---- */

/* Every number has a key, and keys are integers in the order of the numbers: the bits of a positive
 * float, and those of a negative one's magnitude, negated. An interval of keys that holds a whole
 * row is halved by counting the elements up to its middle, until it holds one element or equal
 * ones. So there are at most as many passes over the row as a number has bits, each at the speed of
 * memory, and none writes. Rejected: selection in a copy of the row, which would need scratch of
 * any size in every thread. */

/* Converts bits to a key; -0 has that of 0. */
static int64_t order_bits(hl_pw_kind kind, int64_t bits)
{
    if (kind == HL_PW_I64 || bits >= 0) return bits;
    return (kind == HL_PW_F32 ? INT32_MIN : INT64_MIN) - bits;
}

/* The key of a chunk's first number. */
static int64_t read_key(hl_pw_kind kind, const chunk *number)
{
    int32_t single;
    memcpy(&single, number->single, sizeof single);
    return order_bits(kind, kind == HL_PW_F32 ? single : number->integer[0]);
}

static bool is_nan(hl_pw_kind kind, const chunk *number)
{
    if (kind == HL_PW_I64) return false;
    return kind == HL_PW_F32 ? isnan(number->single[0]) : isnan(number->number[0]);
}

/* The key of element i of n numbers. Elements are compared by their keys alone, since floats know
 * no subnormal ones in the mode that kernels run in. */
#define KEY_OF(T, lowest)                                                                          \
    ({                                                                                             \
        T bits;                                                                                    \
        memcpy(&bits, (const T *)value + i, sizeof bits);                                          \
        bits < 0 ? lowest - bits : bits;                                                           \
    })
#define COUNT_UPTO(T, lowest)                                                                      \
    for (int64_t i = 0; i < n; i++) found += KEY_OF(T, lowest) <= (T)key;

/* Counts a row's elements up to the number of a key. */
static int64_t count_upto(const reduce_state *state, const unsigned char *x, int64_t key)
{
    chunk room;
    int64_t total = 0;
    for (int64_t k = 0; k < state->N; k += N_CHUNK) {
        int64_t n = hl_cpu_min(N_CHUNK, state->N - k);
        const void *value = read_part(state, x, k, n, &room);
        int32_t found = 0;
        if (state->kind == HL_PW_F32) {
            COUNT_UPTO(int32_t, INT32_MIN)
        } else if (state->kind == HL_PW_F64) {
            COUNT_UPTO(int64_t, INT64_MIN)
        } else {
            for (int64_t i = 0; i < n; i++) found += ((const int64_t *)value)[i] <= key;
        }
        total += found;
    }
    return total;
}

/* An interval of keys. */
typedef struct key_range {
    int64_t low, high;
} key_range;

/* From the least number of a row to the largest. Either may be 0 for a subnormal one, since floats
 * know none in the mode that kernels run in: the interval takes in all of these then. */
static key_range read_range(hl_pw_kind kind, const chunk *least, const chunk *largest)
{
    key_range keys = {read_key(kind, least), read_key(kind, largest)};
    int64_t subnormal = kind == HL_PW_I64   ? -1
                        : kind == HL_PW_F32 ? INT64_C(0x7FFFFF)
                                            : INT64_C(0xFFFFFFFFFFFFF);
    if (keys.low >= -subnormal && keys.low <= subnormal) keys.low = -subnormal;
    if (keys.high >= -subnormal && keys.high <= subnormal) keys.high = subnormal;
    return keys;
}

/* Narrows the interval of a row until it holds the median alone. */
static void bisect_row(const reduce_state *state, const unsigned char *x, key_range *keys)
{
    int64_t median = (state->N - 1) / 2, below = 0, upto = state->N;
    while (keys->low < keys->high && upto - below > 1) {
        int64_t middle = keys->low + (int64_t)(((uint64_t)keys->high - (uint64_t)keys->low) / 2);
        int64_t n = count_upto(state, x, middle);
        if (n > median) {
            keys->high = middle, upto = n;
        } else {
            keys->low = middle + 1, below = n;
        }
    }
}

#define FIND_IN(T, lowest)                                                                         \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T key = KEY_OF(T, lowest);                                                                 \
        if ((key >= keys.low && key <= keys.high) != outside) return k + i;                        \
    }

/* Finds the first element in an interval, or outside of it; 0 where there is none. */
static int64_t find_first(const reduce_state *state, const unsigned char *x, key_range keys,
                          bool outside)
{
    chunk room;
    for (int64_t k = 0; k < state->N; k += N_CHUNK) {
        int64_t n = hl_cpu_min(N_CHUNK, state->N - k);
        const void *value = read_part(state, x, k, n, &room);
        if (state->kind == HL_PW_F32) {
            FIND_IN(int32_t, INT32_MIN)
        } else if (state->kind == HL_PW_F64) {
            FIND_IN(int64_t, INT64_MIN)
        } else {
            for (int64_t i = 0; i < n; i++) {
                int64_t key = ((const int64_t *)value)[i];
                if (key >= keys.low && key <= keys.high) return k + i;
            }
        }
    }
    return 0;
}

static void run_medians(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                        const hl_launch *launch)
{
    (void)launch;
    const reduce_state *reduce = state->impl;
    size_t bytes = hl_dtype_bytes(reduce->dtype);
    int64_t *places = args[2];
    end = hl_cpu_min(end, reduce->O);
    for (int64_t o = begin; o < end; o++) {
        const unsigned char *x = (const unsigned char *)args[0] + (size_t)(o * reduce->N) * bytes;
        chunk low, high;
        fold_row(reduce, HL_OP_MIN, x, &low);
        fold_row(reduce, HL_OP_MAX, x, &high);
        bool has_nan = is_nan(reduce->kind, &low);
        if (has_nan) { /* a NaN's key is beyond those of the infinities */
            start_fold(HL_OP_MAX, reduce->kind, &low, 1);
            start_fold(HL_OP_MIN, reduce->kind, &high, 1);
        }
        key_range keys = read_range(reduce->kind, &low, &high);
        if (!has_nan) bisect_row(reduce, x, &keys);
        places[o] = find_first(reduce, x, keys, has_nan);
        memcpy((unsigned char *)args[1] + (size_t)o * bytes, x + (size_t)places[o] * bytes, bytes);
    }
}

/* ---- moments over trailing axes ---- */

static void run_row_moments(const hl_kernel_state *state, void *const *args, int64_t begin,
                            int64_t end, const hl_launch *launch)
{
    (void)launch;
    const reduce_state *reduce = state->impl;
    int64_t C = reduce->N;
    float *mean = args[1], *var = args[2];
    end = hl_cpu_min(end, reduce->O);
    for (int64_t r = begin; r < end; r++) {
        const float *x = (const float *)args[0] + r * C;
        float m = HL_ROW_SUM(C, i, n, hl_row_load(x + i, n)) / (float)C;
        hl_v center = hl_v_set1(m);
        hl_v zero = hl_v_zero();
        float squares = HL_ROW_SUM(C, i, n, ({
                                       hl_v d = hl_row_load(x + i, n) - center;
                                       hl_v_select(hl_vm_first(n), d * d, zero);
                                   }));
        mean[r] = m;
        var[r] = squares / (float)C;
    }
}

/* ---- moments over leading axes: columns of (N,I) ---- */

static void find_column_moments(const reduce_state *reduce, void *const *args, int64_t begin,
                                int64_t end, float *partials)
{
    int64_t I = reduce->I;
    const float *x = args[0];
    end = hl_cpu_min(end, reduce->N);
    for (int64_t first = begin; first < end; first += reduce->moments.grain)
        hl_moments_take(x + first * I, I, 0, hl_cpu_min(end - first, reduce->moments.grain),
                        hl_moments_partial(&reduce->moments, partials, first));
}

/* Vectors [begin, end) of the columns. */
static void merge_column_moments(const reduce_state *reduce, void *const *args, int64_t begin,
                                 int64_t end, float *partials)
{
    hl_moments_merge(&reduce->moments, partials, begin * HL_VL, hl_cpu_min(reduce->I, end * HL_VL),
                     args[1], args[2]);
}

static void run_column_moments(const hl_kernel_state *state, void *const *args, int64_t begin,
                               int64_t end, const hl_launch *launch)
{
    if (launch->phase == 0)
        find_column_moments(state->impl, args, begin, end, launch->scratch);
    else
        merge_column_moments(state->impl, args, begin, end, launch->scratch);
}

/* ---- kernels ---- */

static hl_status query_reduce(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    reduce_state state;
    out_req->deterministic = true;
    if (!make_reduce(graph, node, &state)) {
        if (!hl_node_axes_are_inner(graph, node))
            return hl_reason_set(out_why_not, "needs axes that stand together");
        out_req->order = hl_node_axes_last(graph, node);
        return HL_OK;
    }
    int64_t rows = state.by_column ? state.I : state.O;
    out_req->rows = hl_cpu_max(rows, 1);
    bool is_long = !state.by_column && state.N * state.I >= 64;
    out_req->grain = is_long ? 1 : hl_cpu_line_grain(8);
    out_req->row_in = !state.by_column;
    out_req->row_out = 1;
    out_req->row_cost = (double)state.N * (double)(state.by_column ? 1 : state.I);
    return HL_OK;
}

static hl_status query_sum(hl_device *device, const hl_graph *graph, hl_node_id id,
                           hl_kernel_req *out_req, hl_reason *out_why_not)
{
    reduce_state state;
    if (!make_reduce(graph, &graph->nodes[id], &state) || state.O == 1 || state.I == 1)
        return hl_reason_set(out_why_not, "needs axes that stand together in the midst of others");
    return query_reduce(device, graph, id, out_req, out_why_not);
}

static hl_status query_median(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    reduce_state state;
    HL_TRY(query_reduce(device, graph, id, out_req, out_why_not));
    make_reduce(graph, &graph->nodes[id], &state);
    if (state.I != 1) out_req->order = hl_node_axes_last(graph, &graph->nodes[id]);
    out_req->row_out = hl_cpu_bits(2);
    out_req->row_cost = 100 + 4 * (double)state.N;
    return HL_OK;
}

static hl_status query_moments(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not, bool by_column)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    reduce_state state;
    if (!hl_rows_is_f32(graph, node, 0, 1, out_why_not)) return HL_ERROR_CONFIG;
    bool fits = make_reduce(graph, node, &state) && state.by_column == by_column &&
                (by_column || state.I == 1);
    out_req->deterministic = true;
    if (!fits && !by_column && !state.by_column && hl_node_axes_are_inner(graph, node)) {
        out_req->order = hl_node_axes_last(graph, node);
        return HL_OK;
    }
    if (!fits) return hl_reason_set(out_why_not, "needs leading or trailing axes");
    out_req->rows = hl_cpu_max(by_column ? state.N : state.O, 1);
    out_req->grain = by_column ? state.moments.grain : hl_cpu_line_grain(sizeof(float));
    out_req->row_in = 1;
    out_req->row_out = by_column ? 0 : 3;
    out_req->row_cost = 0.3 * (double)(by_column ? state.I : state.N);
    if (by_column) out_req->scratch_bytes = hl_moments_bytes(&state.moments);
    return HL_OK;
}

static hl_status query_row_moments(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_req *out_req, hl_reason *out_why_not)
{
    return query_moments(device, graph, id, out_req, out_why_not, false);
}

static hl_status query_column_moments(hl_device *device, const hl_graph *graph, hl_node_id id,
                                      hl_kernel_req *out_req, hl_reason *out_why_not)
{
    reduce_state state;
    HL_TRY(query_moments(device, graph, id, out_req, out_why_not, true));
    make_reduce(graph, &graph->nodes[id], &state);
    out_req->n_phases = 2;
    out_req->phase_rows = hl_cpu_max(hl_cpu_ceil_div(state.I, HL_VL), 1);
    out_req->phase_row_cost = 5.0 * (double)state.moments.n_partials;
    return HL_OK;
}

static hl_status prepare_reduce(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    (void)device;
    HL_TRY(hl_alloc(sizeof(reduce_state), &out_state->impl));
    make_reduce(graph, &graph->nodes[id], out_state->impl);
    return HL_OK;
}

#define KERNEL(OP, text)                                                                           \
    {.op = HL_OP_##OP,                                                                             \
     .name = HL_CPU_NAME(text),                                                                    \
     .query = query_reduce,                                                                        \
     .prepare = prepare_reduce,                                                                    \
     .block = run_reduce}
static const hl_kernel prod = KERNEL(PROD, "prod"), max = KERNEL(MAX, "max");
static const hl_kernel min = KERNEL(MIN, "min"), cumsum = KERNEL(CUMSUM, "cumsum");
static const hl_kernel argmax = KERNEL(ARGMAX, "argmax"), argmin = KERNEL(ARGMIN, "argmin");
static const hl_kernel sum = {.op = HL_OP_SUM,
                              .name = HL_CPU_NAME("sum.columns"),
                              .query = query_sum,
                              .prepare = prepare_reduce,
                              .block = run_reduce};
static const hl_kernel median = {.op = HL_OP_MEDIAN,
                                 .name = HL_CPU_NAME("median"),
                                 .query = query_median,
                                 .prepare = prepare_reduce,
                                 .block = run_medians};
static const hl_kernel row_moments = {.op = HL_OP_MOMENTS,
                                      .name = HL_CPU_NAME("moments.rows"),
                                      .query = query_row_moments,
                                      .prepare = prepare_reduce,
                                      .block = run_row_moments};
static const hl_kernel column_moments = {.op = HL_OP_MOMENTS,
                                         .name = HL_CPU_NAME("moments.columns"),
                                         .query = query_column_moments,
                                         .prepare = prepare_reduce,
                                         .block = run_column_moments};

const hl_kernel *const HL_ISA_NAME(hl_cpu_reduce_kernels)[] = {
    &sum,         &prod,           &max, &min, &argmax, &argmin, &cumsum, &median,
    &row_moments, &column_moments, NULL};
