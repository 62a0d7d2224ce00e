/* Order: sorting along the last axis, and places in what is sorted.
 *
 * Every element has a key, an integer in the order of the elements, and an entry: its key with its
 * place below it. No two entries are equal, so the order of entries is stable. A short row is
 * ranked: each element counts those that come before it, a vector of elements at a time. A longer
 * one is sorted by digits from the lowest up (least significant digit first), without those that
 * all keys share, as the upper ones of small integers are.
 *
 * Of a few elements of a long row only candidates are kept: what is not below the k-th best so far
 * is passed over at the speed of memory, and a full room of candidates is sorted and cut to k.
 *
 * Rejected: sorting by comparison, which mispredicts half of its branches. */
#include "kernels/cpu/pointwise_chunk.h"
#include "kernels/cpu/rows.h"

enum {
    RANKED = 64,     /* elements of the longest row that is ranked */
    DIGITS = 1 << 8, /* of a digit of 8 bits */
    LONG_BITS = 11,  /* of a digit in a row of at least LONG elements */
    LONG = 1 << 13,  /* whose counters are worth a pass less */
    KEYS = 512,      /* that are made at a time */
    GROUP = 64,      /* keys that are looked at together */
    MIN_CANDIDATES = 512,
    TOGETHER = 16, /* values that are searched for together */
    FEW = 8        /* a selection is of less than a row's FEW-th part */
};

typedef struct sort_state {
    hl_dtype dtype;
    int64_t O, N, I, k;
    bool is_wide; /* keys of 64 bits */
    bool is_descending, is_selection;
    int64_t room; /* entries, of which there are two rooms */
} sort_state;

/* ---- keys: of 32 bits where the dtype has no more ---- */

typedef struct wide_entry {
    uint64_t key, place;
} wide_entry;

/* Bits of a float as an integer in the order of the floats. */
#define FLOAT_KEY(T, bits, top) ((bits) ^ (((bits) >> (8 * (int)sizeof(T) - 1)) & (top)))

static void make_float_keys(int32_t *key, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float number = x[i] + 0.0f; /* -0 becomes 0 */
        int32_t bits;
        memcpy(&bits, &number, sizeof bits);
        key[i] = number != number ? INT32_MAX : FLOAT_KEY(int32_t, bits, INT32_MAX);
    }
}

#define COPY_KEYS(T)                                                                               \
    for (int64_t i = 0; i < n; i++) key[i] = ((const T *)x)[i];

/* Keys of x[0, n), n <= KEYS; ~key turns the order around. */
static void make_keys(const sort_state *s, int32_t *key, const void *x, int64_t n)
{
    float number[KEYS];
    switch (s->dtype) {
    case HL_DTYPE_F32: make_float_keys(key, x, n); break;
    case HL_DTYPE_I32: COPY_KEYS(int32_t) break;
    case HL_DTYPE_I16: COPY_KEYS(int16_t) break;
    case HL_DTYPE_I8: COPY_KEYS(int8_t) break;
    case HL_DTYPE_U8:
    case HL_DTYPE_BOOL: COPY_KEYS(uint8_t) break;
    default:
        HL_ISA_NAME(hl_pw_load)(HL_PW_F32, number, s->dtype, x, n);
        make_float_keys(key, number, n);
    }
    if (s->is_descending) {
        for (int64_t i = 0; i < n; i++) key[i] = ~key[i];
    }
}

static void make_wide_keys(const sort_state *s, int64_t *key, const void *x, int64_t n)
{
    if (s->dtype == HL_DTYPE_I64) {
        memcpy(key, x, (size_t)n * sizeof *key);
    } else {
        for (int64_t i = 0; i < n; i++) {
            double number = ((const double *)x)[i] + 0.0;
            int64_t bits;
            memcpy(&bits, &number, sizeof bits);
            key[i] = number != number ? INT64_MAX : FLOAT_KEY(int64_t, bits, INT64_MAX);
        }
    }
    if (s->is_descending) {
        for (int64_t i = 0; i < n; i++) key[i] = ~key[i];
    }
}

static uint64_t make_entry(int32_t key, int64_t place)
{
    return (uint64_t)((uint32_t)key ^ (uint32_t)1 << 31) << 32 | (uint64_t)place;
}

static const unsigned char *element_of(const sort_state *s, const void *x, int64_t i)
{
    return (const unsigned char *)x + (size_t)i * hl_dtype_bytes(s->dtype);
}

/* ---- results ---- */

#define TAKE(T)                                                                                    \
    for (int64_t i = 0; i < n; i++) ((T *)values)[i] = ((const T *)x)[places[i]];

/* values[i] = x[places[i]] */
static void take_values(hl_dtype dtype, const void *x, const int64_t *places, int64_t n,
                        void *values)
{
    switch (hl_dtype_bytes(dtype)) {
    case 8: TAKE(uint64_t) break;
    case 4: TAKE(uint32_t) break;
    case 2: TAKE(uint16_t) break;
    default: TAKE(uint8_t) break;
    }
}

/* ---- short rows: every element's place is the number of those before it ---- */

/* Each key against a vector of keys: those behind it count it when it is equal, those before and
 * itself when it is less. */
#define RANK_ROW(name, T, LANES)                                                                   \
    typedef T name##_lanes __attribute__((vector_size(LANES * sizeof(T))));                        \
    static void name(const T *key, int64_t n, T *out_rank)                                         \
    {                                                                                              \
        name##_lanes number;                                                                       \
        for (int l = 0; l < (LANES); l++) number[l] = l;                                           \
        for (int64_t b = 0; b < n; b += (LANES)) {                                                 \
            name##_lanes own, before = {0};                                                        \
            memcpy(&own, key + b, sizeof own);                                                     \
            int64_t end = hl_cpu_min(b + (LANES), n);                                              \
            for (int64_t j = 0; j < b; j++) before -= (name##_lanes)(key[j] <= own);               \
            for (int64_t j = b; j < end; j++)                                                      \
                before -= (name##_lanes)(key[j] < own) |                                           \
                          ((name##_lanes)(key[j] == own) & (name##_lanes)((T)(j - b) < number));   \
            for (int64_t j = end; j < n; j++) before -= (name##_lanes)(key[j] < own);              \
            memcpy(out_rank + b, &before, sizeof before);                                          \
        }                                                                                          \
    }
RANK_ROW(rank_row, int32_t, HL_VL)
RANK_ROW(rank_wide_row, int64_t, HL_VL / 2)

/* s->k places; the ranks of all of the row are a permutation of [0, N). */
#define PLACE_ROW()                                                                                \
    for (int64_t i = 0; i < s->N; i++) all[rank[i]] = i;

static void sort_short_row(const sort_state *s, const void *x, int64_t *places)
{
    int64_t room[RANKED], *all = s->k == s->N ? places : room;
    if (s->is_wide) {
        int64_t key[RANKED] = {0}, rank[RANKED];
        make_wide_keys(s, key, x, s->N);
        rank_wide_row(key, s->N, rank);
        PLACE_ROW()
    } else {
        int32_t key[RANKED] = {0}, rank[RANKED];
        make_keys(s, key, x, s->N);
        rank_row(key, s->N, rank);
        PLACE_ROW()
    }
    if (all == room) memcpy(places, room, (size_t)s->k * sizeof *places);
}

/* ---- entries by digits ---- */

/* Sorts a[0, n) by the digits of KEY(entry), n_bits in all; b has as much room. Returns where the
 * sorted ones are. One pass over the entries counts all digits. */
#define SORT_ENTRIES(name, T, KEY, n_bits, digit_bits)                                             \
    static T *name(T *a, T *b, int64_t n)                                                          \
    {                                                                                              \
        enum {                                                                                     \
            SIZE = 1 << (digit_bits),                                                              \
            N_DIGITS = ((n_bits) + (digit_bits) - 1) / (digit_bits)                                \
        };                                                                                         \
        uint32_t count[N_DIGITS][SIZE];                                                            \
        memset(count, 0, sizeof count);                                                            \
        for (int64_t i = 0; i < n; i++) {                                                          \
            for (int d = 0; d < N_DIGITS; d++)                                                     \
                count[d][KEY(a[i]) >> ((digit_bits) * d) & (SIZE - 1)]++;                          \
        }                                                                                          \
        for (int d = 0; d < N_DIGITS; d++) {                                                       \
            uint32_t *next = count[d], sum = 0;                                                    \
            if (next[KEY(a[0]) >> ((digit_bits) * d) & (SIZE - 1)] == n) continue;                 \
            for (int v = 0; v < SIZE; v++) {                                                       \
                uint32_t found = next[v];                                                          \
                next[v] = sum;                                                                     \
                sum += found;                                                                      \
            }                                                                                      \
            for (int64_t i = 0; i < n; i++)                                                        \
                b[next[KEY(a[i]) >> ((digit_bits) * d) & (SIZE - 1)]++] = a[i];                    \
            T *sorted = b;                                                                         \
            b = a;                                                                                 \
            a = sorted;                                                                            \
        }                                                                                          \
        return a;                                                                                  \
    }
#define KEY_OF(entry)      ((uint32_t)((entry) >> 32))
#define WIDE_KEY_OF(entry) ((entry).key)
SORT_ENTRIES(sort_entries, uint64_t, KEY_OF, 32, 8)
SORT_ENTRIES(sort_many_entries, uint64_t, KEY_OF, 32, LONG_BITS)
SORT_ENTRIES(sort_wide_entries, wide_entry, WIDE_KEY_OF, 64, 8)

static const uint64_t *sort_any(uint64_t *entry, uint64_t *other, int64_t n)
{
    return (n < LONG ? sort_entries : sort_many_entries)(entry, other, n);
}

static void sort_long_row(const sort_state *s, const void *x, void *room, int64_t *places)
{
    if (s->is_wide) {
        wide_entry *entry = room;
        for (int64_t i = 0; i < s->N; i += KEYS) {
            int64_t key[KEYS], n = hl_cpu_min(KEYS, s->N - i);
            make_wide_keys(s, key, element_of(s, x, i), n);
            for (int64_t j = 0; j < n; j++)
                entry[i + j] =
                    (wide_entry){(uint64_t)key[j] ^ (uint64_t)1 << 63, (uint64_t)(i + j)};
        }
        const wide_entry *sorted = sort_wide_entries(entry, entry + s->room, s->N);
        for (int64_t i = 0; i < s->k; i++) places[i] = (int64_t)sorted[i].place;
        return;
    }
    uint64_t *entry = room;
    for (int64_t i = 0; i < s->N; i += KEYS) {
        int32_t key[KEYS];
        int64_t n = hl_cpu_min(KEYS, s->N - i);
        make_keys(s, key, element_of(s, x, i), n);
        for (int64_t j = 0; j < n; j++) entry[i + j] = make_entry(key[j], i + j);
    }
    const uint64_t *sorted = sort_any(entry, entry + s->room, s->N);
    for (int64_t i = 0; i < s->k; i++) places[i] = (int64_t)(uint32_t)sorted[i];
}

/* ---- a few of many ---- */

typedef struct selection {
    void *entry, *other;
    int64_t n, trigger; /* so many are cut */
    bool is_limited;    /* there were k of them */
    int64_t limit;      /* the k-th key then: what is not below it comes too late */
} selection;

/* At most RANKED entries, which are as integers in the order of their keys. */
static uint64_t *rank_entries(const uint64_t *entry, uint64_t *sorted, int64_t n)
{
    int64_t key[RANKED] = {0}, rank[RANKED];
    for (int64_t i = 0; i < n; i++) key[i] = (int64_t)(entry[i] ^ (uint64_t)1 << 63);
    rank_wide_row(key, n, rank);
    for (int64_t i = 0; i < n; i++) sorted[rank[i]] = entry[i];
    return sorted;
}

static void exchange(selection *found)
{
    void *entry = found->entry;
    found->entry = found->other;
    found->other = entry;
}

/* Sorts the candidates and keeps the first k. The more often there are many, as in a row that
 * ascends where the greatest are asked for, the more are waited for. */
static void cut_candidates(const sort_state *s, selection *found)
{
    int64_t n = found->n;
    void *sorted = s->is_wide    ? (void *)sort_wide_entries(found->entry, found->other, n)
                   : n <= RANKED ? (void *)rank_entries(found->entry, found->other, n)
                                 : (void *)sort_entries(found->entry, found->other, n);
    if (sorted != found->entry) exchange(found);
    found->n = hl_cpu_min(n, s->k);
    found->trigger = hl_cpu_max(RANKED - GROUP / 4, 2 * s->k);
    if (n > RANKED) found->trigger = hl_cpu_max(found->trigger, 2 * n);
    found->trigger = hl_cpu_min(found->trigger, s->room - GROUP);
    if (n < s->k) return;
    found->is_limited = true;
    if (s->is_wide) {
        uint64_t last = ((const wide_entry *)found->entry)[s->k - 1].key;
        found->limit = (int64_t)(last ^ (uint64_t)1 << 63);
    } else {
        uint64_t last = ((const uint64_t *)found->entry)[s->k - 1];
        found->limit = (int32_t)(KEY_OF(last) ^ (uint32_t)1 << 31);
    }
}

/* A group of keys, of which the first has this place. */
#define ADD_GROUP(T, ENTRY, E)                                                                     \
    do {                                                                                           \
        T limit = (T)found->limit;                                                                 \
        bool is_limited = found->is_limited;                                                       \
        T below = 0;                                                                               \
        for (int64_t j = 0; j < n; j++) below |= key[j] < limit;                                   \
        if (is_limited && !below) return;                                                          \
        E *entry = found->entry;                                                                   \
        for (int64_t j = 0; j < n; j++)                                                            \
            if (!is_limited || key[j] < limit) entry[found->n++] = ENTRY;                          \
    } while (0)

static void add_keys(const int32_t *key, int64_t n, int64_t first, selection *found)
{
    ADD_GROUP(int32_t, make_entry(key[j], first + j), uint64_t);
}
static void add_wide_keys(const int64_t *key, int64_t n, int64_t first, selection *found)
{
    ADD_GROUP(int64_t, ((wide_entry){(uint64_t)key[j] ^ (uint64_t)1 << 63, (uint64_t)(first + j)}),
              wide_entry);
}

static void select_row(const sort_state *s, const void *x, void *room, int64_t *places)
{
    size_t bytes = s->is_wide ? sizeof(wide_entry) : sizeof(uint64_t);
    selection found = {
        .entry = room, .other = (unsigned char *)room + (size_t)s->room * bytes, .trigger = s->k};
    for (int64_t i = 0; i < s->N; i += KEYS) {
        int64_t wide_key[KEYS], n = hl_cpu_min(KEYS, s->N - i);
        int32_t key[KEYS];
        if (s->is_wide) {
            make_wide_keys(s, wide_key, element_of(s, x, i), n);
        } else {
            make_keys(s, key, element_of(s, x, i), n);
        }
        for (int64_t j = 0; j < n; j += GROUP) {
            int64_t count = hl_cpu_min(GROUP, n - j);
            if (s->is_wide) {
                add_wide_keys(wide_key + j, count, i + j, &found);
            } else {
                add_keys(key + j, count, i + j, &found);
            }
            if (found.n >= found.trigger) cut_candidates(s, &found);
        }
    }
    cut_candidates(s, &found);
    for (int64_t i = 0; i < s->k; i++) {
        places[i] = s->is_wide ? (int64_t)((const wide_entry *)found.entry)[i].place
                               : (int64_t)(uint32_t)((const uint64_t *)found.entry)[i];
    }
}

/* ---- SORT ---- */

static sort_state make_sort(const hl_graph *graph, const hl_node *node)
{
    const hl_type *x = hl_node_in_type(graph, node, 0);
    const hl_attrs_sort *attrs = hl_sort_attrs(node);
    sort_state s = {.dtype = x->dtype, .k = attrs->k, .is_descending = attrs->descending};
    hl_shape_split(&x->shape, &attrs->axis, 1, &s.O, &s.N, &s.I);
    s.is_wide = hl_dtype_bytes(x->dtype) == 8;
    s.is_selection = s.N > 2 * RANKED && s.k < s.N / FEW;
    s.room = s.is_selection ? hl_cpu_max(4 * s.k, MIN_CANDIDATES) : s.N;
    return s;
}

static void run_sort(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const sort_state *s = state->impl;
    size_t bytes = hl_dtype_bytes(s->dtype);
    end = hl_cpu_min(end, s->O);
    if (s->k == 0) return;
    for (int64_t o = begin; o < end; o++) {
        const void *x = (const unsigned char *)args[0] + (size_t)(o * s->N) * bytes;
        int64_t *places = (int64_t *)args[2] + o * s->k;
        if (s->N <= RANKED) {
            sort_short_row(s, x, places);
        } else if (s->is_selection) {
            select_row(s, x, launch->thread_scratch, places);
        } else {
            sort_long_row(s, x, launch->thread_scratch, places);
        }
        take_values(s->dtype, x, places, s->k,
                    (unsigned char *)args[1] + (size_t)(o * s->k) * bytes);
    }
}

static hl_status query_sort(hl_device *device, const hl_graph *graph, hl_node_id id,
                            hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    sort_state s = make_sort(graph, &graph->nodes[id]);
    out_req->deterministic = true;
    if (s.I != 1) out_req->order = hl_node_axes_last(graph, &graph->nodes[id]);
    if (s.N > UINT32_MAX)
        return hl_reason_set(out_why_not, "needs rows of fewer than 2^32 elements, got %lld",
                             (long long)s.N);
    out_req->rows = hl_cpu_max(s.O, 1);
    out_req->grain = hl_cpu_line_grain(s.k * (int64_t)hl_dtype_bytes(s.dtype));
    out_req->row_in = 1;
    out_req->row_out = hl_cpu_bits(2);
    out_req->row_cost = 20 + (s.is_selection ? 0.5 : s.N <= RANKED ? 3 : 10) * (double)s.N;
    if (s.N > RANKED)
        out_req->thread_scratch_bytes =
            2 * (size_t)s.room * (s.is_wide ? sizeof(wide_entry) : sizeof(uint64_t));
    return HL_OK;
}

static hl_status prepare_sort(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_state *out_state)
{
    (void)device;
    sort_state s = make_sort(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* ---- SEARCHSORTED ---- */

typedef struct search_state {
    hl_dtype dtype;
    int64_t N, n_values, per_row; /* of a row of the sequence, of values in all and for each row */
    bool is_right, is_int32;
} search_state;

/* Halves [0, N) by whether the element in the middle comes before the value: without branches, for
 * every second one would be mispredicted, and for some values at a time, as each waits for memory.
 */
#define FIND(T, BEFORE)                                                                            \
    for (int64_t i = begin; i < end; i += TOGETHER) {                                              \
        const T *at[TOGETHER];                                                                     \
        T value[TOGETHER];                                                                         \
        for (int l = 0; l < TOGETHER; l++) {                                                       \
            int64_t own = hl_cpu_min(i + l, end - 1);                                              \
            at[l] = (const T *)args[0] + (is_one ? 0 : own / s->per_row * s->N);                   \
            value[l] = ((const T *)args[1])[own];                                                  \
        }                                                                                          \
        for (int64_t n = s->N; n > 0;) {                                                           \
            int64_t half = n - n / 2;                                                              \
            for (int l = 0; l < TOGETHER; l++)                                                     \
                at[l] += -(int64_t)(BEFORE(at[l][half - 1], value[l])) & half;                     \
            n -= half;                                                                             \
        }                                                                                          \
        for (int64_t l = 0; l < TOGETHER && i + l < end; l++) {                                    \
            int64_t first = is_one ? 0 : (i + l) / s->per_row * s->N;                              \
            place[i + l - begin] = at[l] - (const T *)args[0] - first;                             \
        }                                                                                          \
    }
#define FIND_EITHER(T, LESS, UPTO)                                                                 \
    if (s->is_right) {                                                                             \
        FIND(T, UPTO)                                                                              \
    } else {                                                                                       \
        FIND(T, LESS)                                                                              \
    }
/* A NaN is the greatest. */
#define INT_LESS(a, b)   ((a) < (b))
#define INT_UPTO(a, b)   ((a) <= (b))
#define FLOAT_LESS(a, b) (((a) < (b)) | (((b) != (b)) & ((a) == (a))))
#define FLOAT_UPTO(a, b) (((a) <= (b)) | ((b) != (b)))

#define HALF_LESS(a, b) FLOAT_LESS(widen_half(s->dtype, a), widen_half(s->dtype, b))
#define HALF_UPTO(a, b) FLOAT_UPTO(widen_half(s->dtype, a), widen_half(s->dtype, b))

static float widen_half(hl_dtype dtype, uint16_t bits)
{
    return dtype == HL_DTYPE_BF16 ? hl_bf16_to_f32(bits) : hl_f16_to_f32(bits);
}

static void find_places(const search_state *s, void *const *args, int64_t begin, int64_t end,
                        int64_t *place)
{
    bool is_one = s->per_row == s->n_values;
    switch (s->dtype) {
    case HL_DTYPE_F32: FIND_EITHER(float, FLOAT_LESS, FLOAT_UPTO) break;
    case HL_DTYPE_F64: FIND_EITHER(double, FLOAT_LESS, FLOAT_UPTO) break;
    case HL_DTYPE_BF16:
    case HL_DTYPE_F16: FIND_EITHER(uint16_t, HALF_LESS, HALF_UPTO) break;
    case HL_DTYPE_I64: FIND_EITHER(int64_t, INT_LESS, INT_UPTO) break;
    case HL_DTYPE_I32: FIND_EITHER(int32_t, INT_LESS, INT_UPTO) break;
    case HL_DTYPE_I16: FIND_EITHER(int16_t, INT_LESS, INT_UPTO) break;
    case HL_DTYPE_I8: FIND_EITHER(int8_t, INT_LESS, INT_UPTO) break;
    default: FIND_EITHER(uint8_t, INT_LESS, INT_UPTO) break;
    }
}

static void run_search(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                       const hl_launch *launch)
{
    (void)launch;
    const search_state *s = state->impl;
    end = hl_cpu_min(end, s->n_values);
    for (int64_t i = begin; i < end; i += KEYS) {
        int64_t place[KEYS], n = hl_cpu_min(KEYS, end - i);
        find_places(s, args, i, i + n, place);
        if (s->is_int32) {
            for (int64_t j = 0; j < n; j++) ((int32_t *)args[2])[i + j] = (int32_t)place[j];
        } else {
            memcpy((int64_t *)args[2] + i, place, (size_t)n * sizeof *place);
        }
    }
}

static search_state make_search(const hl_graph *graph, const hl_node *node)
{
    const hl_type *sequence = hl_node_in_type(graph, node, 0);
    const hl_shape *values = &hl_node_in_type(graph, node, 1)->shape;
    search_state s = {.dtype = sequence->dtype,
                      .N = sequence->shape.dim[sequence->shape.rank - 1],
                      .n_values = hl_shape_numel(values),
                      .is_right = hl_searchsorted_attrs(node)->right,
                      .is_int32 = hl_searchsorted_attrs(node)->int32_out};
    s.per_row = sequence->shape.rank == 1 ? s.n_values : values->dim[values->rank - 1];
    return s;
}

static hl_status query_search(hl_device *device, const hl_graph *graph, hl_node_id id,
                              hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device, (void)out_why_not;
    search_state s = make_search(graph, &graph->nodes[id]);
    double halvings = 1;
    for (int64_t n = s.N; n > 1; n /= 2) halvings++;
    out_req->deterministic = true;
    out_req->rows = hl_cpu_max(s.n_values, 1);
    out_req->grain = hl_cpu_line_grain(1);
    out_req->row_in = 1 << 1;
    out_req->row_out = 1;
    out_req->row_cost = 1 + 1.5 * halvings;
    return HL_OK;
}

static hl_status prepare_search(hl_device *device, const hl_graph *graph, hl_node_id id,
                                hl_kernel_state *out_state)
{
    (void)device;
    search_state s = make_search(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

static const hl_kernel sort = {.op = HL_OP_SORT,
                               .name = HL_CPU_NAME("sort"),
                               .query = query_sort,
                               .prepare = prepare_sort,
                               .block = run_sort};
static const hl_kernel search = {.op = HL_OP_SEARCHSORTED,
                                 .name = HL_CPU_NAME("searchsorted"),
                                 .query = query_search,
                                 .prepare = prepare_search,
                                 .block = run_search};

const hl_kernel *const HL_ISA_NAME(hl_cpu_sort_kernels)[] = {&sort, &search, NULL};
