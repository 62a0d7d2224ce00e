/* Attention without its scores in memory (Rabe and Staats 2021, Dao et al. 2022), and its gradient.
 *
 * Queries of a head go by in blocks, keys in blocks within: a tile of scores is a product into
 * thread scratch, where it becomes powers, and is the left side of the product with the values. A
 * row's largest score and sum are carried over the blocks of keys, and what it has summed so far is
 * scaled where the largest score grows. A head's keys and values are packed once for as many blocks
 * of queries as a thread has of it.
 *
 * The gradient makes each tile again, of the logarithms of the sums that forward has kept, and of
 * what rounding took from them: beside a largest score of -1e9 all of it. A unit of its work is a
 * head of keys, with the heads of queries that share it: so sums have one order, and five products
 * a tile do, where splitting by queries would take seven. */
#include <math.h>

#include "ir/program.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/random.h"
#include "kernels/cpu/rows.h"

/* Queries and keys of a tile; the keys are whole panels. Packed keys and values of a head that take
 * more than KEEP bytes are packed block by block. */
enum { QUERIES = 5 * HL_GEMM_ROWS_BEST, KEYS = 256, KEEP = 1 << 20 };

/* A block of a matrix as a product reads it: where in thread scratch, and of how many words. */
typedef struct packed {
    size_t at;
    int64_t words;
} packed;

typedef struct attention_state {
    int64_t B, H, L, E, Hk, S, Ev;
    int64_t n_blocks, n_queries; /* of queries in a head, all but the last of them of so many */
    int n_in;
    float scale;
    bool is_causal, has_mask, mask_is_bool, keeps;
    int64_t mask_stride[4]; /* 0: broadcast */
    bool drops;
    hl_rng_key key;
    uint32_t threshold;
    float drop_scale;
    hl_gemm scores, to_out;                        /* q k^T, powers v */
    hl_gemm gains, to_queries, to_keys, to_values; /* dout v^T, ds k, ds^T q, powers^T dout */
    packed keys_t, values, values_t, keys, queries, dout;
    size_t tile, tile_g, drops_at, gemm, bytes; /* in thread scratch */
} attention_state;

/* ---- sizes ----------------------------------------------------------------------------------- */

static hl_gemm make_product(int64_t n, int64_t k, int64_t a_row, int64_t a_col, int64_t ldc,
                            float alpha)
{
    return (hl_gemm){.type = &hl_gemm_f32,
                     .n = n,
                     .k = k,
                     .a_row = a_row,
                     .a_col = a_col,
                     .n_segments = 1,
                     .b_rows = hl_gemm_count_rows(&hl_gemm_f32, 1, k),
                     .ldc = ldc,
                     .first = true,
                     .last = true,
                     .epilogue = {.alpha = alpha}};
}

static size_t reserve(attention_state *s, int64_t n_words)
{
    size_t at = s->bytes;
    s->bytes += (size_t)hl_round_up(n_words * (int64_t)sizeof(float), HL_ALIGN);
    return at;
}

static packed reserve_packed(attention_state *s, int64_t k, int64_t n, int64_t n_blocks)
{
    size_t bytes = hl_gemm_pack_bytes(&hl_gemm_f32, 1, k, n);
    packed p = {s->bytes, (int64_t)(bytes / sizeof(hl_gemm_word))};
    s->bytes += (size_t)hl_round_up((int64_t)bytes * n_blocks, HL_ALIGN);
    return p;
}

static void reserve_gemm(attention_state *s, const hl_gemm *const *products, int n)
{
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = hl_gemm_scratch_bytes(products[i]);
        if (bytes > most) most = bytes;
    }
    s->gemm = s->bytes;
    s->bytes += most;
}

/* Queries, keys and values stand at `first` and after it, mask and control at `rest`. */
static attention_state make_attention(const hl_graph *graph, const hl_node *node, int first,
                                      int rest)
{
    const hl_attrs_attention *attrs = hl_attention_attrs(node);
    const int64_t *q = hl_node_in_type(graph, node, first)->shape.dim,
                  *k = hl_node_in_type(graph, node, first + 1)->shape.dim,
                  *v = hl_node_in_type(graph, node, first + 2)->shape.dim;
    attention_state s = {.B = q[0],
                         .H = q[1],
                         .L = q[2],
                         .E = q[3],
                         .Hk = k[1],
                         .S = k[2],
                         .Ev = v[3],
                         .n_in = node->n_in,
                         .scale = (float)attrs->scale,
                         .is_causal = attrs->is_causal,
                         .has_mask = attrs->has_mask,
                         .drops = attrs->p > 0};
    s.n_blocks = hl_cpu_ceil_div(s.L, QUERIES);
    s.n_queries = s.L ? hl_cpu_ceil_div(s.L, s.n_blocks) : 0;
    if (s.has_mask) {
        const hl_type *mask = hl_node_in_type(graph, node, rest);
        s.mask_is_bool = mask->dtype == HL_DTYPE_BOOL;
        for (int64_t d = 3, stride = 1; d >= 0; stride *= mask->shape.dim[d--])
            s.mask_stride[d] = mask->shape.dim[d] == 1 ? 0 : stride;
    }
    if (!s.drops) return s;
    s.key = hl_rng_key_make((uint64_t)attrs->seed, attrs->stream);
    s.threshold = hl_dropout_threshold(attrs->p);
    s.drop_scale = (float)hl_dropout_scale(attrs->p);
    return s;
}

static void plan_forward(attention_state *s)
{
    int64_t n_keys = hl_cpu_min(s->S, KEYS), n_blocks = hl_cpu_ceil_div(s->S, KEYS);
    s->keeps = s->S * (s->E + s->Ev) * (int64_t)sizeof(float) <= KEEP;
    if (!s->keeps) n_blocks = 1;
    s->scores = make_product(n_keys, s->E, s->E, 1, KEYS, s->scale);
    s->to_out = make_product(s->Ev, n_keys, KEYS, 1, s->Ev, 1);
    s->tile = reserve(s, QUERIES * KEYS);
    s->keys_t = reserve_packed(s, s->E, KEYS, n_blocks);
    s->values = reserve_packed(s, KEYS, s->Ev, n_blocks);
    s->drops_at = s->drops ? reserve(s, (QUERIES * KEYS + HL_RANDOM_SLACK) / 2) : 0;
    reserve_gemm(s, (const hl_gemm *[]){&s->scores, &s->to_out}, 2);
}

static void plan_grad(attention_state *s)
{
    int64_t n_keys = hl_cpu_min(s->S, KEYS), rows = hl_cpu_min(s->L, QUERIES);
    s->scores = make_product(n_keys, s->E, s->E, 1, KEYS, s->scale);
    s->gains = make_product(n_keys, s->Ev, s->Ev, 1, KEYS, 1);
    s->to_queries = make_product(s->E, n_keys, KEYS, 1, s->E, 1);
    s->to_keys = make_product(s->E, rows, 1, KEYS, s->E, 1);
    s->to_values = make_product(s->Ev, rows, 1, KEYS, s->Ev, 1);
    s->tile = reserve(s, QUERIES * KEYS);
    s->tile_g = reserve(s, QUERIES * KEYS);
    s->keys_t = reserve_packed(s, s->E, KEYS, 1);
    s->values_t = reserve_packed(s, s->Ev, KEYS, 1);
    s->keys = reserve_packed(s, KEYS, s->E, 1);
    s->queries = reserve_packed(s, QUERIES, s->E, 1);
    s->dout = reserve_packed(s, QUERIES, s->Ev, 1);
    s->drops_at = s->drops ? reserve(s, (QUERIES * KEYS + HL_RANDOM_SLACK) / 2) : 0;
    reserve_gemm(
        s, (const hl_gemm *[]){&s->scores, &s->gains, &s->to_queries, &s->to_keys, &s->to_values},
        5);
}

/* ---- a row of scores ------------------------------------------------------------------------- */

/* Where in the array of all scores a row of a tile begins. */
typedef struct place {
    int64_t b, h, l, s;
} place;

static void hide(const attention_state *s, const void *mask, place at, float *row, int64_t n)
{
    if (s->is_causal)
        for (int64_t j = hl_cpu_max(at.l + 1 - at.s, 0); j < n; j++) row[j] = -INFINITY;
    if (!s->has_mask) return;
    int64_t step = s->mask_stride[3], from = at.b * s->mask_stride[0] + at.h * s->mask_stride[1] +
                                             at.l * s->mask_stride[2] + at.s * step;
    if (s->mask_is_bool) {
        const uint8_t *seen = (const uint8_t *)mask + from;
        for (int64_t j = 0; j < n; j++) row[j] = seen[j * step] ? row[j] : -INFINITY;
    } else {
        const float *added = (const float *)mask + from;
        for (int64_t j = 0; j < n; j++) row[j] += added[j * step];
    }
}

/* Random bits of a tile of `rows` and n columns; rows of all keys are neighbours, which are drawn
 * together. Returns how far apart rows are. */
static int64_t draw_tile(const attention_state *s, const hl_control *control, place at,
                         int64_t rows, int64_t n, uint16_t *out_bits)
{
    int64_t per_sample = s->H * s->L * s->S, apart = s->S <= KEYS ? s->S : KEYS;
    int64_t n_draws = s->S <= KEYS ? 1 : rows, n_drawn = s->S <= KEYS ? rows * s->S : n;
    for (int64_t i = 0; i < n_draws; i++) {
        int64_t element = ((at.b * s->H + at.h) * s->L + at.l + i) * s->S + at.s;
        HL_ISA_NAME(hl_cpu_random_bits)
        (s->key, (uint32_t)control->attempted, (uint64_t)control->micro_row, per_sample, element,
         n_drawn, out_bits + i * apart);
    }
    return apart;
}

/* What dropout multiplies by, of HL_VL random numbers. */
HL_SIMD hl_v find_drops(const attention_state *s, const uint16_t *bits)
{
    hl_vi word = __builtin_convertvector(*(const hl_vh_any *)bits, hl_vi);
    hl_vi limit = hl_vi_set1((int32_t)s->threshold - 1);
    return hl_v_keep(hl_vi_gt(word, limit), hl_v_set1(s->drop_scale));
}

HL_SIMD void drop_row(const attention_state *s, float *row, const uint16_t *bits, int64_t n)
{
    for (int64_t j = 0; j < n; j += HL_VL) {
        int64_t lanes = hl_cpu_min(n - j, HL_VL);
        hl_row_store(row + j, hl_row_load(row + j, lanes) * find_drops(s, bits + j), lanes);
    }
}

HL_SIMD void scale_row(float *row, float by, int64_t n)
{
    hl_v factor = hl_v_set1(by);
    for (int64_t j = 0; j < n; j += HL_VL) {
        int64_t lanes = hl_cpu_min(n - j, HL_VL);
        hl_row_store(row + j, hl_row_load(row + j, lanes) * factor, lanes);
    }
}

/* The largest score of a row, or a NaN that is among them. */
static float find_largest(const float *row, int64_t n)
{
    float largest = hl_row_max(row, n);
    for (int64_t j = 0; j < n && largest == -INFINITY; j++)
        if (isnan(row[j])) return row[j];
    return largest;
}

/* A row's scores to powers; what it has summed before is scaled. */
static void take_row(float *row, int64_t n, float *top, float *sum, float *out, int64_t n_out)
{
    float largest = find_largest(row, n), now = largest <= *top ? *top : largest;
    if (now == -INFINITY) {
        memset(row, 0, (size_t)n * sizeof *row);
        return;
    }
    if (*sum > 0 && now != *top) {
        float kept = expf(*top - now);
        scale_row(out, kept, n_out);
        *sum *= kept;
    }
    *sum += hl_row_exp(row, now, row, n);
    *top = now;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct attention_args {
    const float *q, *k, *v;
    const void *mask;
    const hl_control *control;
    float *out, *lse, *rest; /* of the gradient they are read */
    const float *dout;
    float *dq, *dk, *dv;
    char *scratch;
    int64_t packed; /* forward: the head of keys that is packed; -1: none */
} attention_args;

static float *floats(const attention_args *a, size_t at)
{
    return (float *)(void *)(a->scratch + at);
}

static hl_gemm_word *words(const attention_args *a, packed p, int64_t block)
{
    return (hl_gemm_word *)(void *)(a->scratch + p.at) + block * p.words;
}

/* A matrix (k,n) whose rows lie side by side; transposed: (n,k). */
static void pack_matrix(const float *at, int64_t k, int64_t n, bool transposed, hl_gemm_word *to)
{
    const hl_gemm_b b = {.type = &hl_gemm_f32,
                         .dtype = HL_DTYPE_F32,
                         .at = at,
                         .n_segments = 1,
                         .k = k,
                         .n = n,
                         .k_stride = transposed ? 1 : n,
                         .n_stride = transposed ? k : 1};
    hl_gemm_pack(&b, 0, hl_gemm_panels(n), to);
}

/* Rows of c (+)= a b, of these sizes; of b's rows there may be more in its packed form. */
static void multiply(const attention_state *s, const attention_args *a, const hl_gemm *product,
                     int64_t rows, int64_t n, int64_t k, const float *left,
                     const hl_gemm_word *right, int64_t packed_k, bool first, float *c)
{
    hl_gemm gemm = *product;
    gemm.n = n, gemm.k = k, gemm.b_rows = hl_gemm_count_rows(&hl_gemm_f32, 1, packed_k);
    gemm.a = left, gemm.b = right, gemm.c = c, gemm.first = first;
    hl_gemm_run(&gemm, 0, rows, 0, n, a->scratch + s->gemm);
}

/* Keys of the block that begins there. */
static int64_t count_keys(const attention_state *s, int64_t first)
{
    return hl_cpu_min(s->S - first, KEYS);
}

/* Heads of queries that share one of keys. */
static int64_t count_shared(const attention_state *s)
{
    return s->H / s->Hk;
}

/* Keys from `first` on, of one block at the most, that any of these queries sees; 0: none. */
static int64_t count_seen(const attention_state *s, int64_t l, int64_t rows, int64_t first)
{
    int64_t n = count_keys(s, first);
    return s->is_causal ? hl_cpu_max(hl_cpu_min(n, l + rows - first), 0) : n;
}

/* ---- forward --------------------------------------------------------------------------------- */

static void pack_block(const attention_state *s, const attention_args *a, int64_t keys,
                       int64_t block)
{
    int64_t first = block * KEYS, n = count_keys(s, first), at = s->keeps ? block : 0;
    pack_matrix(a->k + (keys * s->S + first) * s->E, s->E, n, true, words(a, s->keys_t, at));
    pack_matrix(a->v + (keys * s->S + first) * s->Ev, n, s->Ev, false, words(a, s->values, at));
}

static void attend_block(const attention_state *s, const attention_args *a, int64_t head, int64_t l,
                         int64_t rows, int64_t block, float *top, float *sum)
{
    int64_t first = block * KEYS, n = count_seen(s, l, rows, first), at = s->keeps ? block : 0;
    float *tile = floats(a, s->tile), *out = a->out + (head * s->L + l) * s->Ev;
    uint16_t *bits = (uint16_t *)(void *)(a->scratch + s->drops_at);
    place of = {head / s->H, head % s->H, l, first};
    int64_t apart = s->drops ? draw_tile(s, a->control, of, rows, n, bits) : 0;
    multiply(s, a, &s->scores, rows, n, s->E, a->q + (head * s->L + l) * s->E,
             words(a, s->keys_t, at), s->E, true, tile);
    for (int64_t i = 0; i < rows; i++, of.l++) {
        float *row = tile + i * KEYS;
        hide(s, a->mask, of, row, n);
        take_row(row, n, &top[i], &sum[i], out + i * s->Ev, s->Ev);
        if (s->drops) drop_row(s, row, bits + i * apart, n);
    }
    multiply(s, a, &s->to_out, rows, s->Ev, n, tile, words(a, s->values, at), count_keys(s, first),
             block == 0, out);
}

static void attend(const attention_state *s, attention_args *a, int64_t head, int64_t l)
{
    float top[QUERIES], sum[QUERIES];
    int64_t rows = hl_cpu_min(s->L - l, s->n_queries), n_blocks = hl_cpu_ceil_div(s->S, KEYS);
    int64_t keys = head / s->H * s->Hk + head % s->H / count_shared(s);
    for (int64_t i = 0; i < rows; i++) top[i] = -INFINITY, sum[i] = 0;
    for (int64_t block = 0; s->keeps && a->packed != keys && block < n_blocks; block++)
        pack_block(s, a, keys, block);
    a->packed = keys;
    for (int64_t block = 0; block < n_blocks && count_seen(s, l, rows, block * KEYS); block++) {
        if (!s->keeps) pack_block(s, a, keys, block);
        attend_block(s, a, head, l, rows, block, top, sum);
    }
    for (int64_t i = 0; i < rows; i++) {
        bool is_empty = top[i] == -INFINITY;
        int64_t row = head * s->L + l + i;
        float log_sum = logf(sum[i]), lse = top[i] + log_sum;
        scale_row(a->out + row * s->Ev, is_empty ? 0 : 1 / sum[i], s->Ev);
        a->lse[row] = is_empty ? INFINITY : lse;
        a->rest[row] = is_empty ? 0 : log_sum - (lse - top[i]);
    }
}

static void run_attention(const hl_kernel_state *state, void *const *args, int64_t begin,
                          int64_t end, const hl_launch *launch)
{
    const attention_state *s = state->impl;
    attention_args a = {.q = args[0],
                        .k = args[1],
                        .v = args[2],
                        .mask = s->has_mask ? args[3] : NULL,
                        .control = s->drops ? args[s->n_in - 1] : NULL,
                        .out = args[s->n_in],
                        .lse = args[s->n_in + 1],
                        .rest = (float *)args[s->n_in + 1] + s->B * s->H * s->L,
                        .scratch = launch->thread_scratch,
                        .packed = -1};
    end = hl_cpu_min(end, s->B * s->H * s->n_blocks);
    for (int64_t u = begin; u < end; u++)
        attend(s, &a, u / s->n_blocks, u % s->n_blocks * s->n_queries);
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* A row of scores s and of g = dout v^T to the powers w d, which values get, and to what scores
 * get, w (d g - delta) scale; d: what dropout multiplies by, bits NULL: nothing. */
HL_SIMD void take_grad_row(const attention_state *s, float *row, float *g, const uint16_t *bits,
                           float lse, float rest, float delta, int64_t n)
{
    hl_v log_sum = hl_v_set1(lse), left = hl_v_set1(rest), mean = hl_v_set1(delta),
         factor = hl_v_set1(s->scale);
    for (int64_t j = 0; j < n; j += HL_VL) {
        int64_t lanes = hl_cpu_min(n - j, HL_VL);
        hl_v w = hl_row_power(hl_row_load(row + j, lanes) - log_sum - left),
             gain = hl_row_load(g + j, lanes);
        hl_v kept = w;
        if (bits) {
            hl_v d = find_drops(s, bits + j);
            kept = w * d, gain = gain * d;
        }
        hl_row_store(row + j, kept, lanes);
        hl_row_store(g + j, w * (gain - mean) * factor, lanes);
    }
}

static void make_tiles(const attention_state *s, const attention_args *a, int64_t head, int64_t l,
                       int64_t rows, int64_t first, int64_t n)
{
    float *tile = floats(a, s->tile), *tile_g = floats(a, s->tile_g);
    uint16_t *bits = (uint16_t *)(void *)(a->scratch + s->drops_at);
    place of = {head / s->H, head % s->H, l, first};
    int64_t row0 = head * s->L + l, Ev = s->Ev;
    int64_t apart = s->drops ? draw_tile(s, a->control, of, rows, n, bits) : 0;
    multiply(s, a, &s->scores, rows, n, s->E, a->q + row0 * s->E, words(a, s->keys_t, 0), s->E,
             true, tile);
    multiply(s, a, &s->gains, rows, n, Ev, a->dout + row0 * Ev, words(a, s->values_t, 0), Ev, true,
             tile_g);
    for (int64_t i = 0; i < rows; i++, of.l++) {
        const float *dy = a->dout + (row0 + i) * Ev, *y = a->out + (row0 + i) * Ev;
        float delta = HL_ROW_SUM(Ev, j, m, hl_row_load(dy + j, m) * hl_row_load(y + j, m));
        hide(s, a->mask, of, tile + i * KEYS, n);
        take_grad_row(s, tile + i * KEYS, tile_g + i * KEYS, s->drops ? bits + i * apart : NULL,
                      a->lse[row0 + i], a->rest[row0 + i], delta, n);
    }
}

/* What a tile adds: to the gradients of its queries, and of its keys and values, of which it may be
 * the first. */
static void add_tile(const attention_state *s, const attention_args *a, int64_t head, int64_t l,
                     int64_t keys, int64_t first, bool is_first)
{
    const float *tile = floats(a, s->tile), *tile_g = floats(a, s->tile_g);
    int64_t rows = hl_cpu_min(s->L - l, s->n_queries), n = count_seen(s, l, rows, first);
    int64_t row0 = head * s->L + l, key0 = keys * s->S + first;
    make_tiles(s, a, head, l, rows, first, n);
    pack_matrix(a->q + row0 * s->E, rows, s->E, false, words(a, s->queries, 0));
    pack_matrix(a->dout + row0 * s->Ev, rows, s->Ev, false, words(a, s->dout, 0));
    multiply(s, a, &s->to_queries, rows, s->E, n, tile_g, words(a, s->keys, 0),
             count_keys(s, first), first == 0, a->dq + row0 * s->E);
    multiply(s, a, &s->to_keys, n, s->E, rows, tile_g, words(a, s->queries, 0), rows, is_first,
             a->dk + key0 * s->E);
    multiply(s, a, &s->to_values, n, s->Ev, rows, tile, words(a, s->dout, 0), rows, is_first,
             a->dv + key0 * s->Ev);
}

static void attend_grad(const attention_state *s, const attention_args *a, int64_t keys)
{
    int64_t head0 = keys * count_shared(s);
    for (int64_t first = 0; first < s->S; first += KEYS) {
        int64_t n = count_keys(s, first), key0 = keys * s->S + first;
        /* Tiles that see some of the keys add to zeros. */
        bool is_first = !s->is_causal;
        if (s->is_causal) {
            memset(a->dk + key0 * s->E, 0, (size_t)(n * s->E) * sizeof(float));
            memset(a->dv + key0 * s->Ev, 0, (size_t)(n * s->Ev) * sizeof(float));
        }
        pack_matrix(a->k + key0 * s->E, s->E, n, true, words(a, s->keys_t, 0));
        pack_matrix(a->k + key0 * s->E, n, s->E, false, words(a, s->keys, 0));
        pack_matrix(a->v + key0 * s->Ev, s->Ev, n, true, words(a, s->values_t, 0));
        for (int64_t g = 0; g < count_shared(s); g++)
            for (int64_t l = 0; l < s->L; l += s->n_queries) {
                if (!count_seen(s, l, hl_cpu_min(s->L - l, s->n_queries), first)) continue;
                add_tile(s, a, head0 + g, l, keys, first, is_first);
                is_first = false;
            }
    }
}

static void run_grad(const hl_kernel_state *state, void *const *args, int64_t begin, int64_t end,
                     const hl_launch *launch)
{
    const attention_state *s = state->impl;
    attention_args a = {.dout = args[0],
                        .q = args[1],
                        .k = args[2],
                        .v = args[3],
                        .out = args[4],
                        .lse = args[5],
                        .rest = (float *)args[5] + s->B * s->H * s->L,
                        .mask = s->has_mask ? args[6] : NULL,
                        .control = s->drops ? args[s->n_in - 1] : NULL,
                        .dq = args[s->n_in],
                        .dk = args[s->n_in + 1],
                        .dv = args[s->n_in + 2],
                        .scratch = launch->thread_scratch};
    end = hl_cpu_min(end, s->B * s->Hk);
    for (int64_t keys = begin; keys < end; keys++) attend_grad(s, &a, keys);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static bool is_taken(const hl_graph *graph, const hl_node *node, int first, int last,
                     hl_reason *out_why_not)
{
    if (!hl_rows_is_f32(graph, node, first, last, out_why_not)) return false;
    for (int i = first; i < last; i++)
        if (hl_shape_numel(&hl_node_in_type(graph, node, i)->shape) == 0)
            return hl_reason_set(out_why_not, "needs operands that are not empty"), false;
    return true;
}

static attention_state plan_attention(const hl_graph *graph, const hl_node *node)
{
    bool is_grad = node->op == HL_OP_ATTENTION_GRAD;
    attention_state s = make_attention(graph, node, is_grad, is_grad ? 6 : 3);
    if (is_grad)
        plan_grad(&s);
    else
        plan_forward(&s);
    return s;
}

static hl_status query_attention(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    bool is_grad = node->op == HL_OP_ATTENTION_GRAD;
    if (!is_taken(graph, node, 0, is_grad ? 6 : 3, out_why_not)) return HL_ERROR_CONFIG;
    attention_state s = plan_attention(graph, node);
    double pairs = (double)(s.is_causal ? (s.S + 1) / 2 : s.S) * (double)(s.E + s.Ev);
    out_req->rows = is_grad ? s.B * s.Hk : s.B * s.H * s.n_blocks;
    out_req->grain = 1;
    out_req->row_cost = is_grad ? 0.1 * (double)(s.H / s.Hk * s.L) * pairs
                                : 0.04 * (double)hl_cpu_min(s.L, QUERIES) * pairs;
    out_req->thread_scratch_bytes = s.bytes;
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_attention(hl_device *device, const hl_graph *graph, hl_node_id id,
                                   hl_kernel_state *out_state)
{
    (void)device;
    attention_state s = plan_attention(graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

#define KERNEL(OP, text, fn)                                                                       \
    {.op = HL_OP_##OP,                                                                             \
     .name = HL_CPU_NAME(text),                                                                    \
     .query = query_attention,                                                                     \
     .prepare = prepare_attention,                                                                 \
     .block = fn}
static const hl_kernel attention = KERNEL(ATTENTION, "attention", run_attention);
static const hl_kernel gradient = KERNEL(ATTENTION_GRAD, "attention_grad", run_grad);

const hl_kernel *const HL_ISA_NAME(hl_cpu_attention_kernels)[] = {&attention, &gradient, NULL};
