/* GEMM: the loops around the register tiles, for all types; gemm_f32.c and gemm_bf16.c have the
 * inner loops.
 *
 * Rows of C go by in blocks of the type's m_block, and K in equal blocks of at most k_block words,
 * so that a panel's block stays in the second-level cache while the rows go by. With segments a
 * block is several whole segments, or part of one. The sums of a block that is not the last are
 * kept in C.
 *
 * A is read in place. It is copied first, a block at a time, where its row stride would put a
 * tile's rows into the same cache sets, and where a type can't read it in place: bfloat16 takes
 * pairs of neighbours in k, and a run of odd length must end in zero. */
#include "kernels/cpu/gemm.h"

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/simd/math.h"

enum {
    /* A copy of A shares the second-level cache with B: its rows have COPY_BLOCK words, at a stride
     * one cache line off the power of two. */
    COPY_BLOCK = 512,
    COPY_STRIDE = COPY_BLOCK + 16,
    PACK_PANELS = 8 /* written side by side: as many streams as a cache set has ways */
};

enum { WORD = sizeof(hl_gemm_word) };

/* ---- epilogue ---- */

void hl_gemm_gelu(int64_t rows, int64_t n, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++, c += ldc)
        for (int64_t j = 0; j < n; j += HL_VL) {
            int64_t lanes = min64(HL_VL, n - j);
            if (lanes == HL_VL)
                hl_v_store(c + j, hl_v_gelu(hl_v_load(c + j)));
            else
                hl_v_store_n(c + j, hl_v_gelu(hl_v_load_n(c + j, lanes)), lanes);
        }
}

/* ---- packing ---- */

static int64_t count_words(const hl_gemm_type *type, int64_t k)
{
    return type->terms == 1 ? k : (k + 1) / 2;
}

int64_t hl_gemm_count_rows(const hl_gemm_type *type, int64_t n_segments, int64_t k)
{
    return n_segments * count_words(type, k);
}

size_t hl_gemm_pack_bytes(const hl_gemm_type *type, int64_t n_segments, int64_t k, int64_t n)
{
    int64_t rows = hl_gemm_count_rows(type, n_segments, k);
    return (size_t)(hl_gemm_panels(n) * rows * HL_GEMM_PANEL) * WORD;
}

/* Panels from p on, of one kind: as many as are written side by side. Returns their number. */
static int64_t pack_panels(const hl_gemm_b *b, int64_t p, int64_t panel1, hl_gemm_word *packed)
{
    const hl_gemm_packer *packer =
        b->dtype == HL_DTYPE_F32 ? b->type->pack_f32 : b->type->pack_bf16;
    int64_t bytes = b->dtype == HL_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    int64_t segment_words = count_words(b->type, b->k) * HL_GEMM_PANEL;
    int64_t panel_words = b->n_segments * segment_words;
    int64_t lanes = min64(HL_GEMM_PANEL, b->n - p * HL_GEMM_PANEL), count = 1;
    const unsigned char *from = b->at;
    from += p * HL_GEMM_PANEL * b->n_stride * bytes;
    hl_gemm_word *to = packed + p * panel_words;
    if (b->n_stride != 1 && b->k_stride != 1) {
        bool are_runs = b->segment_stride * b->segment_stride == 1 && b->n_segments > 1 &&
                        b->n_segments <= HL_GEMM_TAPS_MAX;
        if (are_runs && b->k_stride == b->n_segments)
            packer->between_terms(b, lanes, from, to);
        else if (are_runs && b->n_stride == b->n_segments)
            packer->between_columns(b, lanes, from, to);
        else
            packer->scattered(b, lanes, from, to);
        return count;
    }
    if (b->n_stride == 1 && lanes == HL_GEMM_PANEL)
        count = min64(PACK_PANELS, min64(panel1, b->n / HL_GEMM_PANEL) - p);
    for (int64_t s = 0; s < b->n_segments; s++, to += segment_words) {
        const unsigned char *at = from + s * b->segment_stride * bytes;
        if (b->n_stride != 1)
            packer->transposed(b->k, lanes, at, b->n_stride, to);
        else if (lanes == HL_GEMM_PANEL)
            packer->rows(b->k, count, panel_words, at, b->k_stride, to);
        else
            packer->edge(b->k, lanes, at, b->k_stride, to);
    }
    return count;
}

void hl_gemm_pack(const hl_gemm_b *b, int64_t panel0, int64_t panel1, hl_gemm_word *packed)
{
    for (int64_t p = panel0; p < panel1;) p += pack_panels(b, p, panel1, packed);
}

/* ---- strips ---- */

/* One strip of columns of C, `width` vectors wide, done in row tiles of nearly equal height, from
 * *tile on. A's rows begin a_step bytes apart, and tiles another a_gap. */
static void run_tiles(const hl_gemm_type *type, int width, int64_t rows, int64_t a_step,
                      int64_t a_gap, hl_gemm_tile *tile)
{
    const hl_gemm_tile_fn *run = type->tiles[width];
    row_split split = split_rows(rows, HEIGHT_OF[a_gap ? 2 : width]);
    for (int64_t t = 0; t < split.n_tiles; t++) {
        int64_t h = split.height + (t < split.n_taller);
        if (a_gap) tile->a_stride = h * WORD; /* columns of this tile alone */
        run[h](tile);
        tile->a += h * a_step + a_gap;
        tile->c += h * tile->ldc;
        tile->residual += h * tile->ld_residual;
    }
}

/* The same for any type. */
static void run_strip(const hl_gemm_type *type, int width, int64_t rows, int64_t a_step,
                      int64_t a_gap, hl_gemm_tile *tile)
{
    if (!type->sum_products) {
        run_tiles(type, width, rows, a_step, a_gap, tile);
        return;
    }
    _Alignas(64) float sums[HL_GEMM_SUM_ROWS * HL_GEMM_PANEL];
    hl_gemm_tile part = *tile;
    for (int64_t i = 0; i < rows; i += HL_GEMM_SUM_ROWS) {
        int64_t n = min64(HL_GEMM_SUM_ROWS, rows - i);
        part.a = tile->a + i * a_step;
        part.c = tile->c + i * tile->ldc;
        part.residual = tile->residual + i * tile->ld_residual;
        part.steps = tile->steps;
        if (tile->views) part.views = tile->views + i / HL_GEMM_VIEW_ROWS * tile->n_segments;
        if (!type->sum_products(width, n, a_step, &part, sums)) continue;
        part.a = (const unsigned char *)sums;
        run_tiles(type, width, n, HL_GEMM_PANEL * sizeof(float), 0, &part);
    }
}

static int64_t begin_sums(const hl_gemm_type *type, int64_t words)
{
    return type->begin_sums ? type->begin_sums(words) : 1;
}

static void end_sums(const hl_gemm_type *type)
{
    if (type->end_sums) type->end_sums();
}

int64_t hl_gemm_rows_best(const hl_gemm_type *type)
{
    return type->rows_best;
}

int64_t hl_gemm_rows_most(const hl_gemm_type *type)
{
    return type->m_block;
}

/* Vectors of the strip that starts with `left` vectors to go: all when they fit one tile, else
 * two, or three where one would be left over. Few rows take wide strips, to keep enough chains
 * going. */
static int choose_width(const hl_gemm_type *type, int64_t left, int64_t rows)
{
    if (type->sum_products) return (int)min64(left, 2);
    if (left <= WIDTH_MAX) return (int)left;
    if (rows <= HEIGHT_OF[WIDTH_MAX] && WIDTH_MAX % 2 == 0) return WIDTH_MAX;
    return left == 3 ? 3 : 2;
}

/* ---- rows of C ---- */

/* A block of the reduction: terms [at, at + k) of segments [segment, segment + n_segments). */
typedef struct k_block {
    int64_t segment, n_segments, at, k;
} k_block;

/* The largest block: so many word rows of each of so many segments; one of them is all there is or
 * the other is 1. */
typedef struct k_partition {
    int64_t words, n_segments;
} k_partition;

/* Equal blocks of words_max at most, rounded up to a cache line of A. */
static int64_t choose_words(int64_t words, int64_t words_max)
{
    int64_t block = ceil_div(words, ceil_div(words, words_max));
    return min64((block + 15) / 16 * 16, words);
}

static k_partition divide_k(const hl_gemm *gemm, bool copy)
{
    int64_t words_max = copy ? COPY_BLOCK : gemm->type->k_block;
    int64_t words = count_words(gemm->type, gemm->k), n_segments = gemm->n_segments;
    if (words * n_segments <= words_max) return (k_partition){words, n_segments};
    if (words > words_max) return (k_partition){choose_words(words, words_max), 1};
    return (k_partition){words, ceil_div(n_segments, ceil_div(n_segments, words_max / words))};
}

/* The block at `at` of `segment`. */
static k_block make_block(const hl_gemm *gemm, const k_partition *p, int64_t segment, int64_t at)
{
    int64_t n_segments = min64(p->n_segments, gemm->n_segments - segment);
    return (k_block){segment, n_segments, at, min64(p->words * gemm->type->terms, gemm->k - at)};
}

/* Whether A is copied: because its terms can't be read in words, or because several strips read
 * rows that share cache sets. */
static bool wants_copy(const hl_gemm *gemm)
{
    bool is_odd = gemm->type->terms > 1 && gemm->k % 2 != 0;
    if (gemm->segments) return is_odd;
    if (gemm->type->terms > 1 && (is_odd || gemm->a_col != 1)) return true;
    return gemm->a_col == 1 && gemm->a_row % 1024 == 0 && gemm->n >= 4 * HL_GEMM_PANEL;
}

static size_t count_copy_bytes(const hl_gemm *gemm)
{
    return wants_copy(gemm) ? (size_t)(gemm->type->m_block * COPY_STRIDE * WORD) : 0;
}

size_t hl_gemm_scratch_bytes(const hl_gemm *gemm)
{
    size_t bytes = count_copy_bytes(gemm);
    if (!gemm->type->make_views) return bytes;
    /* Of fewer segments a block may have more: bytes do not fall where segments are more. */
    bool copy = wants_copy(gemm);
    k_partition p = divide_k(gemm, copy);
    int64_t most = (copy ? COPY_BLOCK : gemm->type->k_block) / (p.words > 0 ? p.words : 1);
    if (most > gemm->n_segments) most = gemm->n_segments;
    return bytes + gemm->type->view_bytes(gemm->type->m_block, most > 1 ? most : 1, p.words);
}

bool hl_gemm_is_one_block(const hl_gemm *gemm)
{
    k_partition p = divide_k(gemm, wants_copy(gemm));
    return p.words == count_words(gemm->type, gemm->k) && p.n_segments == gemm->n_segments;
}

/* k terms that lie `stride` bytes apart, and zeros up to the next word. Terms of 4 bytes are never
 * copied from columns. */
static void copy_run(const hl_gemm_type *type, int64_t k, const unsigned char *from, int64_t stride,
                     unsigned char *to)
{
    const int64_t bytes = type->bytes;
    if (stride == bytes)
        memcpy(to, from, (size_t)(k * bytes));
    else
        for (int64_t t = 0; t < k; t++) memcpy(to + t * 2, from + t * stride, 2);
    if (bytes < WORD && k % 2) memset(to + k * bytes, 0, (size_t)bytes);
}

/* Where A's run of a segment begins, for row i. */
static const unsigned char *find_run(const hl_gemm *gemm, int64_t segment, int64_t at, int64_t i)
{
    const int64_t bytes = gemm->type->bytes;
    if (!gemm->segments)
        return (const unsigned char *)gemm->a + (i * gemm->a_row + at * gemm->a_col) * bytes;
    const unsigned char *run = gemm->segments[segment * gemm->ld_segments + i];
    return run + (gemm->segment_offset + at) * bytes;
}

/* Rows [m0, m1) of the block, its segments behind one another. */
static void copy_block(const hl_gemm *gemm, const k_block *block, int64_t m0, int64_t m1,
                       unsigned char *copy)
{
    int64_t words = count_words(gemm->type, block->k);
    int64_t stride = (gemm->segments ? 1 : gemm->a_col) * gemm->type->bytes;
    for (int64_t i = m0; i < m1; i++, copy += COPY_STRIDE * WORD)
        for (int64_t s = 0; s < block->n_segments; s++)
            copy_run(gemm->type, block->k, find_run(gemm, block->segment + s, block->at, i), stride,
                     copy + s * words * WORD);
}

/* The block's A and B, as the first tile of rows [m0, m1) reads them, and bytes between A's rows.
 */
static hl_gemm_tile make_tile(const hl_gemm *gemm, const k_block *block, int64_t m0, int64_t m1,
                              unsigned char *copy, int64_t *out_a_step)
{
    const hl_gemm_type *type = gemm->type;
    const int64_t row = block->segment * count_words(type, gemm->k) + count_words(type, block->at);
    hl_gemm_tile tile = {
        .form = HL_GEMM_ROWS,
        .k = count_words(type, block->k),
        .n_segments = 1,
        .b = gemm->b + row * HL_GEMM_PANEL,
        .b_stride = HL_GEMM_PANEL,
        .b_pair = gemm->b_rows * HL_GEMM_PANEL,
        .ldc = gemm->ldc,
    };
    if (copy) {
        copy_block(gemm, block, m0, m1, copy);
        tile.k *= block->n_segments;
        tile.a = copy, *out_a_step = tile.a_stride = COPY_STRIDE * WORD;
    } else if (gemm->segments) {
        tile.form = HL_GEMM_SEGMENTS;
        tile.n_segments = block->n_segments;
        tile.segment_offset = (gemm->segment_offset + block->at) * type->bytes;
        tile.a = (const unsigned char *)(gemm->segments + block->segment * gemm->ld_segments + m0);
        tile.a_stride = gemm->ld_segments * (int64_t)sizeof(void *);
        *out_a_step = sizeof(void *);
    } else {
        tile.a = find_run(gemm, 0, block->at, m0);
        *out_a_step = gemm->a_row * type->bytes;
        tile.a_stride = *out_a_step;
        if (gemm->a_col != 1) {
            tile.form = HL_GEMM_COLUMNS;
            tile.a_stride = gemm->a_col * type->bytes;
        }
    }
    return tile;
}

/* The steps of an epilogue that a block ends with. */
static unsigned list_steps(const hl_gemm *gemm, bool is_first, bool is_last)
{
    const hl_gemm_epilogue *epilogue = &gemm->epilogue;
    unsigned steps = epilogue->alpha != 1 ? STEP_ALPHA : 0;
    if (!is_first)
        steps |= STEP_CONTINUE;
    else if (!gemm->first)
        steps |= STEP_ACCUMULATE;
    if (!(gemm->last && is_last)) return steps;
    if (epilogue->scale) steps |= STEP_SCALE;
    if (epilogue->bias) steps |= STEP_BIAS;
    if (epilogue->residual) steps |= STEP_RESIDUAL;
    if (epilogue->activation == HL_GEMM_RELU) steps |= STEP_RELU;
    if (epilogue->activation == HL_GEMM_GELU) steps |= STEP_GELU;
    return steps;
}

/* All strips of rows [m0, m1) and columns [n0, n1) for one block of the reduction. */
static void run_block(const hl_gemm *gemm, const k_block *block, int64_t k_each, unsigned steps,
                      int64_t m0, int64_t m1, int64_t n0, int64_t n1, unsigned char *copy,
                      void *views)
{
    const hl_gemm_epilogue *epilogue = &gemm->epilogue;
    int64_t a_step, rows = m1 - m0;
    hl_gemm_tile tile = make_tile(gemm, block, m0, m1, copy, &a_step);
    const unsigned char *a = tile.a;
    const hl_gemm_word *b = tile.b;
    tile.k_each = k_each, tile.steps = steps, tile.alpha = epilogue->alpha;
    if (gemm->type->make_views) gemm->type->make_views(&tile, rows, n1 - n0, a_step, views);
    int width;
    for (int64_t j = n0; j < n1; j += width * HL_VL) {
        width = choose_width(gemm->type, ceil_div(n1 - j, HL_VL), rows);
        tile.last_lanes = min64(HL_VL, n1 - j - (width - 1) * HL_VL);
        tile.a = a, tile.b = b + j / HL_GEMM_PANEL * tile.b_pair;
        tile.c = gemm->c + m0 * gemm->ldc + j;
        if (steps & STEP_SCALE) tile.scale = epilogue->scale + j;
        if (steps & STEP_BIAS) tile.bias = epilogue->bias + j;
        if (steps & STEP_RESIDUAL) {
            tile.ld_residual = epilogue->ld_residual;
            tile.residual = epilogue->residual + m0 * tile.ld_residual + j;
        }
        run_strip(gemm->type, width, rows, a_step, 0, &tile);
    }
}

void hl_gemm_run(const hl_gemm *gemm, int64_t m0, int64_t m1, int64_t n0, int64_t n1, void *scratch)
{
    if (n0 >= n1) return;
    if (!gemm->segments && gemm->a_col == 1 && gemm->n <= gemm->type->thin_max) {
        gemm->type->run_thin(gemm, m0, m1);
        return;
    }
    bool copy = wants_copy(gemm);
    k_partition partition = divide_k(gemm, copy);
    /* Segments that are copied are one run. */
    int64_t run = partition.words * (copy ? partition.n_segments : 1);
    int64_t k_each = begin_sums(gemm->type, run);
    for (int64_t i = m0; i < m1; i += gemm->type->m_block) {
        k_block block = {0};
        bool is_last;
        do { /* once for an empty reduction too: C is still to be written */
            bool is_first = block.segment == 0 && block.at == 0;
            block = make_block(gemm, &partition, block.segment, block.at);
            int64_t segment = block.segment, at = block.at + block.k;
            if (at >= gemm->k) at = 0, segment += block.n_segments;
            is_last = segment >= gemm->n_segments;
            run_block(gemm, &block, k_each, list_steps(gemm, is_first, is_last), i,
                      min64(i + gemm->type->m_block, m1), n0, n1, copy ? scratch : NULL,
                      (unsigned char *)scratch + count_copy_bytes(gemm));
            block.segment = segment, block.at = at;
        } while (!is_last);
    }
    end_sums(gemm->type);
}

/* ---- A^T B ---- */

enum {
    TN_K_BLOCK = 512, /* rows of A and B: no type has more of them in a pass over a tile */
    TN_TILE_M = 512,  /* the largest tile of C: its block of A goes by once per strip of B, from */
    TN_TILE_N = 512,  /* the second-level cache or the one behind it */
    TN_SPLIT_TILE_M = 64, /* K is split only where tiles of this size are fewer than */
    TN_SPLIT_TILE_N = 128,
    TN_SPLIT_TASKS = 16,
    TN_SPLIT_MIN = 1024,   /* rows of K that pay for writing and adding up a partial sum */
    TN_TASK_MIN = 1 << 20, /* multiply-adds that are not divided further: some 20 us */
    TN_PACK_B_TILES = 8    /* row tiles that pay for packing B */
};

static int64_t round_lanes(int64_t n)
{
    return ceil_div(n, HL_VL) * HL_VL;
}

/* Vectors take the dimension that fills them better; a wide enough gain pays for the transposition
 * of the finished tile. */
static bool wants_swap(int64_t m, int64_t n)
{
    return n * round_lanes(m) * 10 < m * round_lanes(n) * 9;
}

/* float32 B is read in place too: a tile of 32 registers is so tall that a line of B comes in time
 * from wherever it lies, unless its rows lie a multiple of 2 KB apart, in two sets of the
 * first-level cache. */
static bool packs_b(const hl_gemm_type *type, int64_t rows, int64_t ldb)
{
    if (type->terms > 1) return true;
    return (!REGISTERS_32 || ldb % 512 == 0) && rows >= TN_PACK_B_TILES * HL_GEMM_ROWS_BEST;
}

/* Rows of K per split: decides bits, so it knows the shape only. */
static int64_t choose_tile_k(int64_t rows, int64_t cols, int64_t k)
{
    int64_t tiles = ceil_div(rows, TN_SPLIT_TILE_M) * ceil_div(cols, TN_SPLIT_TILE_N), splits = 1;
    if (tiles < TN_SPLIT_TASKS && k >= 2 * TN_SPLIT_MIN)
        splits = min64(ceil_div(TN_SPLIT_TASKS, tiles), k / TN_SPLIT_MIN);
    return ceil_div(ceil_div(k, splits), TN_K_BLOCK) * TN_K_BLOCK;
}

void hl_gemm_tn_plan_make(int64_t m, int64_t n, int64_t k, int64_t n_tasks_min,
                          hl_gemm_tn_plan *out_plan)
{
    bool swapped = wants_swap(m, n);
    int64_t rows = swapped ? n : m, cols = swapped ? m : n, tile_k = choose_tile_k(rows, cols, k);
    int64_t splits = k > 0 ? ceil_div(k, tile_k) : 1;
    int64_t tiles_m = ceil_div(rows, TN_TILE_M), tiles_n = ceil_div(cols, TN_TILE_N);
    int64_t tile_m = 0, tile_n = 0;
    for (;;) {
        tile_m = ceil_div(rows, tiles_m);
        tile_n = hl_gemm_panels(ceil_div(cols, tiles_n)) * HL_GEMM_PANEL;
        tiles_m = ceil_div(rows, tile_m), tiles_n = ceil_div(cols, tile_n);
        if (tiles_m * tiles_n * splits >= n_tasks_min) break;
        if (tile_m * tile_n * min64(tile_k, k) < TN_TASK_MIN) break;
        if (tile_n >= 2 * HL_GEMM_PANEL && tile_n >= tile_m)
            tiles_n *= 2;
        else if (tile_m >= 2 * HL_GEMM_ROWS_BEST)
            tiles_m *= 2;
        else
            break;
    }
    int64_t block = min64(k, TN_K_BLOCK), tiles = tiles_m * tiles_n;
    /* A in whole tiles, whatever the type's are. */
    int64_t a_rows = ceil_div(tile_m, HL_GEMM_VIEW_ROWS) * HL_GEMM_VIEW_ROWS;
    int64_t a_words = ceil_div(block, HL_GEMM_VIEW_ROWS) * HL_GEMM_VIEW_ROWS + HL_VL;
    int64_t words = block * tile_n + a_rows * a_words;
    if (swapped) words += tile_m * tile_n;
    *out_plan = (hl_gemm_tn_plan){
        .tile_m = tile_m,
        .tile_n = tile_n,
        .tile_k = tile_k,
        .n_tiles_m = tiles_m,
        .n_tiles_n = tiles_n,
        .n_splits = splits,
        .n_tiles = tiles * splits,
        .n_merges = splits > 1 ? tiles : 0,
        .swapped = swapped,
        .partial_bytes = splits > 1 ? (size_t)(splits * m * n) * sizeof(float) : 0,
        .scratch_bytes = (size_t)words * WORD,
    };
}

/* What a task works on: C[m, n] += A^T B over rows [k0, k1), A and B possibly exchanged. */
typedef struct tn_task {
    const hl_gemm_type *type;
    int64_t m, n, k0, k1;
    const unsigned char *a, *b; /* at the tile's first column */
    int64_t lda, ldb;
    const hl_gemm_tn *runs; /* whose segments are B; NULL: b is */
    int64_t col;            /* the tile's first, among those of the segments */
    float *c;
    int64_t ldc;
    float alpha;
    bool accumulate;
} tn_task;

/* All panels of rows [k0, k0 + k) of B's segments. */
static void pack_runs(const tn_task *task, int64_t k0, int64_t k, int64_t panel_words,
                      hl_gemm_word *packed)
{
    const hl_gemm_tn *runs = task->runs;
    const hl_gemm_packer *packer =
        runs->type->terms > 1 ? runs->type->pack_bf16 : runs->type->pack_f32;
    for (int64_t j = 0; j < task->n; j += HL_GEMM_PANEL, packed += panel_words) {
        int64_t col = task->col + j, segment = col / runs->segment_n;
        packer->runs(k, runs->segments + segment * runs->ld_segments + k0,
                     runs->segment_offset + col % runs->segment_n, packed);
    }
}

/* One block of the reduction into all strips of the tile. */
static void run_tn_block(const tn_task *task, int64_t k0, int64_t k, int64_t k_each,
                         hl_gemm_word *scratch)
{
    const hl_gemm_type *type = task->type;
    int64_t words = count_words(type, k), panels = hl_gemm_panels(task->n);
    int64_t panel_words = words * HL_GEMM_PANEL;
    hl_gemm_columns a =
        type->view_columns(k, task->m, task->n, task->a + k0 * task->lda * type->bytes, task->lda,
                           scratch + panels * panel_words);
    hl_gemm_b b = {.type = type,
                   .dtype = type->terms > 1 ? HL_DTYPE_BF16 : HL_DTYPE_F32,
                   .at = task->runs ? NULL : task->b + k0 * task->ldb * type->bytes,
                   .n_segments = 1,
                   .k = k,
                   .n = task->n,
                   .k_stride = task->ldb,
                   .n_stride = 1};
    bool pack_b = task->runs || packs_b(type, task->m, task->ldb);
    if (task->runs)
        pack_runs(task, k0, k, panel_words, scratch);
    else if (pack_b)
        hl_gemm_pack(&b, 0, panels, scratch);
    hl_gemm_tile tile = {.form = a.is_turned ? HL_GEMM_ROWS : HL_GEMM_COLUMNS,
                         .k = words,
                         .k_each = k_each,
                         .a_stride = a.stride,
                         .n_segments = 1,
                         .ldc = task->ldc,
                         .alpha = task->alpha};
    if (task->alpha != 1) tile.steps |= STEP_ALPHA;
    if (task->accumulate || k0 > task->k0) tile.steps |= STEP_CONTINUE;
    int64_t a_step = a.is_turned  ? a.stride
                     : a.is_tiled ? words * WORD
                                  : WORD,
            a_gap = a.is_tiled ? TILE_GAP * WORD : 0;
    int width;
    for (int64_t j = 0; j < task->n; j += width * HL_VL) {
        int64_t left = ceil_div(task->n - j, HL_VL);
        width = a.is_tiled ? (int)min64(2, left) : choose_width(type, left, task->m);
        tile.last_lanes = min64(HL_VL, task->n - j - (width - 1) * HL_VL);
        tile.b = scratch + j / HL_GEMM_PANEL * panel_words;
        tile.b_stride = HL_GEMM_PANEL, tile.b_pair = panel_words;
        if (!pack_b) {
            hl_gemm_b strip = b;
            strip.at = (const float *)b.at + j;
            strip.n = min64(width * HL_VL, task->n - j);
            if (tile.last_lanes < HL_VL) {
                hl_gemm_pack(&strip, 0, hl_gemm_panels(strip.n), scratch);
                tile.b = scratch;
            } else {
                tile.b = strip.at, tile.b_stride = task->ldb, tile.b_pair = HL_GEMM_PANEL;
            }
        }
        tile.a = a.at, tile.c = task->c + j;
        run_strip(type, width, task->m, a_step, a_gap, &tile);
    }
}

static void run_tn_task(const tn_task *task, hl_gemm_word *scratch)
{
    int64_t block = task->type->tn_block * task->type->terms, k0 = task->k0;
    int64_t k_each = begin_sums(task->type, task->type->tn_block);
    do { /* once for an empty reduction too: C is still to be written */
        int64_t k = min64(block, task->k1 - k0);
        run_tn_block(task, k0, k, k_each, scratch);
        k0 += k;
    } while (k0 < task->k1);
    end_sums(task->type);
}

/* c (cols,rows) (+)= the transpose of t (rows,cols), at most HL_VL x HL_VL */
static void add_square(int64_t rows, int64_t cols, const float *t, int64_t ldt, float *c,
                       int64_t ldc, bool accumulate)
{
    hl_v square[HL_VL];
    for (int64_t r = 0; r < HL_VL; r++)
        square[r] = r < rows ? hl_v_load_n(t + r * ldt, cols) : hl_v_zero();
    hl_v_transpose(square);
    for (int64_t r = 0; r < cols; r++) {
        float *at = c + r * ldc;
        hl_v y = square[r];
        if (accumulate) y = hl_v_load_n(at, rows) + y;
        if (rows == HL_VL)
            hl_v_store(at, y);
        else
            hl_v_store_n(at, y, rows);
    }
}

/* The same for few rows, by fewer exchanges. */
enum { FEW_ROWS = 4 };
static void add_few_rows(int64_t rows, int64_t cols, const float *t, int64_t ldt, float *c,
                         int64_t ldc, bool accumulate)
{
    hl_v woven[FEW_ROWS];
    float columns[HL_VL][FEW_ROWS];
    for (int64_t r = 0; r < FEW_ROWS; r++)
        woven[r] = r < rows ? hl_v_load_n(t + r * ldt, cols) : hl_v_zero();
    hl_v_weave(woven, FEW_ROWS);
    for (int64_t v = 0; v < FEW_ROWS; v++) hl_v_store(columns[0] + v * HL_VL, woven[v]);
    for (int64_t r = 0; r < cols; r++) {
        float *at = c + r * ldc;
        if (rows == FEW_ROWS && !accumulate)
            memcpy(at, columns[r], sizeof columns[r]);
        else
            for (int64_t i = 0; i < rows; i++)
                at[i] = accumulate ? at[i] + columns[r][i] : columns[r][i];
    }
}

/* c (n,m) (+)= the transpose of t (m,n) */
static void add_transposed(int64_t m, int64_t n, const float *t, float *c, int64_t ldc,
                           bool accumulate)
{
    for (int64_t i = 0; i < m; i += HL_VL)
        for (int64_t j = 0; j < n; j += HL_VL) {
            int64_t rows = min64(HL_VL, m - i), cols = min64(HL_VL, n - j);
            const float *from = t + i * n + j;
            float *to = c + j * ldc + i;
            if (rows <= FEW_ROWS)
                add_few_rows(rows, cols, from, n, to, ldc, accumulate);
            else
                add_square(rows, cols, from, n, to, ldc, accumulate);
        }
}

void hl_gemm_tn_tile(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t tile,
                     float *partials, void *scratch)
{
    int64_t rows = plan->swapped ? gemm->n : gemm->m, cols = plan->swapped ? gemm->m : gemm->n;
    int64_t j = tile % plan->n_tiles_n * plan->tile_n;
    int64_t i = tile / plan->n_tiles_n % plan->n_tiles_m * plan->tile_m;
    int64_t split = tile / (plan->n_tiles_n * plan->n_tiles_m), bytes = gemm->type->bytes;
    bool partial = plan->n_splits > 1, swapped = plan->swapped;
    int64_t ldc = partial ? gemm->n : gemm->ldc;
    float *c = partial ? partials + split * gemm->m * gemm->n : gemm->c, *turned = scratch;
    tn_task task = {
        .type = gemm->type,
        .m = min64(plan->tile_m, rows - i),
        .n = min64(plan->tile_n, cols - j),
        .k0 = split * plan->tile_k,
        .k1 = min64((split + 1) * plan->tile_k, gemm->k),
        .a = (const unsigned char *)(swapped ? gemm->b : gemm->a) + i * bytes,
        .lda = swapped ? gemm->ldb : gemm->lda,
        .b = gemm->segments ? NULL
                            : (const unsigned char *)(swapped ? gemm->a : gemm->b) + j * bytes,
        .runs = gemm->segments ? gemm : NULL,
        .col = j,
        .ldb = swapped ? gemm->lda : gemm->ldb,
        .c = swapped ? turned : c + i * ldc + j,
        .ldc = ldc,
        .alpha = gemm->alpha,
        .accumulate = !partial && gemm->accumulate,
    };
    if (!swapped) {
        run_tn_task(&task, scratch);
        return;
    }
    task.ldc = task.n, task.accumulate = false;
    run_tn_task(&task, (hl_gemm_word *)scratch + plan->tile_m * plan->tile_n);
    add_transposed(task.m, task.n, turned, c + j * ldc + i, ldc, !partial && gemm->accumulate);
}

/* Sum of `count` partials of one vector, halves onto halves: a tree that the count fixes. */
static hl_v sum_partials(const float *at, int64_t stride, int64_t count, int64_t lanes)
{
    if (count == 1) return hl_v_load_n(at, lanes);
    int64_t half = (count + 1) / 2;
    hl_v low = sum_partials(at, stride, half, lanes);
    return low + sum_partials(at + half * stride, stride, count - half, lanes);
}

void hl_gemm_tn_merge(const hl_gemm_tn *gemm, const hl_gemm_tn_plan *plan, int64_t merge,
                      const float *partials)
{
    int64_t tj = merge % plan->n_tiles_n, ti = merge / plan->n_tiles_n;
    int64_t m0 = ti * plan->tile_m, m1 = m0 + plan->tile_m;
    int64_t n0 = tj * plan->tile_n, n1 = n0 + plan->tile_n;
    if (plan->swapped) {
        m0 = tj * plan->tile_n, m1 = m0 + plan->tile_n;
        n0 = ti * plan->tile_m, n1 = n0 + plan->tile_m;
    }
    m1 = min64(m1, gemm->m), n1 = min64(n1, gemm->n);
    for (int64_t i = m0; i < m1; i++)
        for (int64_t j = n0; j < n1; j += HL_VL) {
            int64_t lanes = min64(HL_VL, n1 - j);
            float *c = gemm->c + i * gemm->ldc + j;
            hl_v sum =
                sum_partials(partials + i * gemm->n + j, gemm->m * gemm->n, plan->n_splits, lanes);
            if (gemm->accumulate) sum = hl_v_load_n(c, lanes) + sum;
            hl_v_store_n(c, sum, lanes);
        }
}
