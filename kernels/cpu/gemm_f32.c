/* GEMM, float32: the inner loops of gemm_tile.h's tiles, and what packing reads.
 *
 * B comes as vectors from packed panels, A one number at a time, broadcast: so A is read where it
 * lies, by row (a forward pass), by column (a weight gradient) or by segments (a convolution), and
 * only B is packed, once per optimizer step.
 *
 * Rejected: packing A in tiles (a transpose per element of A costs 5 % at N = 128), reducing
 * several k in parallel for short tiles (bits would depend on the height), masked loads of B's
 * edge (packing pads it with zeros). */
#include "kernels/cpu/gemm_tile.h"

/* ---- inner loops: sum += A B ---- */

#define LOAD_B                                                                                     \
    hl_v x[4];                                                                                     \
    _Pragma("GCC unroll 4") for (int v = 0; v < width; v++) x[v] =                                 \
        hl_v_load(b + v / 2 * b_pair + v % 2 * HL_VL);                                             \
    b += b_stride

/* Three rows share a pointer: base, base + stride and base + 2 stride are addressing modes. */
HL_SIMD void add_rows(const int height, const int width, hl_v sum[][4], const hl_gemm_tile *tile)
{
    const float *b = (const float *)(const void *)tile->b;
    const int64_t k = tile->k, b_stride = tile->b_stride, b_pair = tile->b_pair;
    const int64_t a_stride = tile->a_stride;
    const char *row[(HEIGHT_MAX + 2) / 3];
#pragma GCC unroll 14
    for (int i = 0; i < height; i += 3) row[i / 3] = (const char *)tile->a + i * a_stride;
#pragma GCC unroll 4
    for (int64_t t = 0; t < k; t++) {
        LOAD_B;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            hl_v y = hl_v_set1(*(const float *)(const void *)(row[i / 3] + i % 3 * a_stride));
            if (i % 3 == 2 || i + 1 == height) row[i / 3] += sizeof(float);
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = hl_v_fma(y, x[v], sum[i][v]);
        }
    }
}

HL_SIMD void add_columns(const int height, const int width, hl_v sum[][4], const hl_gemm_tile *tile)
{
    const float *b = (const float *)(const void *)tile->b;
    const int64_t k = tile->k, b_stride = tile->b_stride, b_pair = tile->b_pair;
    const int64_t a_stride = tile->a_stride;
    const unsigned char *a = tile->a;
#pragma GCC unroll 4
    for (int64_t t = 0; t < k; t++) {
        LOAD_B;
#pragma GCC unroll 14
        for (int i = 0; i < height; i++) {
            hl_v y = hl_v_set1(((const float *)(const void *)a)[i]);
#pragma GCC unroll 4
            for (int v = 0; v < width; v++) sum[i][v] = hl_v_fma(y, x[v], sum[i][v]);
        }
        a += a_stride;
    }
}

/* A pointer per row, and one index for all of them, so that no pointer moves. */
HL_SIMD void add_segments(const int height, const int width, hl_v sum[][4],
                          const hl_gemm_tile *tile)
{
    const float *b = (const float *)(const void *)tile->b;
    const int64_t k = tile->k, b_stride = tile->b_stride, b_pair = tile->b_pair;
    const unsigned char *list = tile->a;
    for (int64_t s = 0; s < tile->n_segments; s++, list += tile->a_stride) {
        const void *const *segments = (const void *const *)(const void *)list;
        const float *row[HEIGHT_MAX];
#pragma GCC unroll 14
        for (int i = 0; i < height; i++)
            row[i] =
                (const float *)(const void *)((const char *)segments[i] + tile->segment_offset);
#pragma GCC unroll 4
        for (int64_t t = 0; t < k; t++) {
            LOAD_B;
#pragma GCC unroll 14
            for (int i = 0; i < height; i++) {
                hl_v y = hl_v_set1(row[i][t]);
#pragma GCC unroll 4
                for (int v = 0; v < width; v++) sum[i][v] = hl_v_fma(y, x[v], sum[i][v]);
            }
        }
    }
}

TILES(TILE_FUNCTION)

/* ---- thin C ---- */

/* Up to this many columns a tile would use one lane in four or fewer. Then lanes run along the
 * rows of C instead: A goes through registers in squares, transposed. Only 16 lanes make up for
 * that. */
enum { THIN_MAX = HL_VL == 16 ? 4 : 0 };

/* The epilogue of a column, lanes along the rows: the steps of store_tile. */
static void finish_thin(const hl_gemm *gemm, int64_t i, int64_t rows, int64_t j, hl_v sum)
{
    const hl_gemm_epilogue *epilogue = &gemm->epilogue;
    float lanes[HL_VL], *at = gemm->c + i * gemm->ldc + j;
    hl_v y = sum * hl_v_set1(epilogue->alpha);
    if (!gemm->first) y = y + pick_lanes(at, gemm->ldc, rows);
    if (gemm->last) {
        int64_t ld = epilogue->ld_residual;
        if (epilogue->scale) y = y * hl_v_set1(epilogue->scale[j]);
        if (epilogue->bias) y = y + hl_v_set1(epilogue->bias[j]);
        if (epilogue->residual) y = y + pick_lanes(epilogue->residual + i * ld + j, ld, rows);
        if (epilogue->activation == HL_GEMM_RELU) y = hl_v_max(hl_v_zero(), y);
    }
    hl_v_store(lanes, y);
    for (int64_t r = 0; r < rows; r++) at[r * gemm->ldc] = lanes[r];
}

/* HL_VL rows of `width` columns: the same chain in the order of k as in a tile. */
HL_SIMD void run_thin(const int width, const hl_gemm *gemm, int64_t i, int64_t rows)
{
    hl_v sum[4] = {hl_v_zero(), hl_v_zero(), hl_v_zero(), hl_v_zero()};
    const float *a = (const float *)gemm->a + i * gemm->a_row;
    const float *b = (const float *)(const void *)gemm->b;
    for (int64_t k = 0; k < gemm->k; k += HL_VL) {
        int64_t count = min64(HL_VL, gemm->k - k);
        hl_v square[HL_VL];
#pragma GCC unroll 16
        for (int64_t r = 0; r < HL_VL; r++)
            square[r] = r < rows ? hl_v_load_n(a + r * gemm->a_row + k, count) : hl_v_zero();
        hl_v_transpose(square);
        if (count == HL_VL) {
#pragma GCC unroll 16
            for (int64_t t = 0; t < HL_VL; t++)
                for (int j = 0; j < width; j++)
                    sum[j] = hl_v_fma(square[t], hl_v_set1(b[t * HL_GEMM_PANEL + j]), sum[j]);
        } else {
            for (int64_t t = 0; t < count; t++)
                for (int j = 0; j < width; j++)
                    sum[j] = hl_v_fma(square[t], hl_v_set1(b[t * HL_GEMM_PANEL + j]), sum[j]);
        }
        b += HL_VL * HL_GEMM_PANEL;
    }
    for (int j = 0; j < width; j++) finish_thin(gemm, i, rows, j, sum[j]);
    if (gemm->last && gemm->epilogue.activation == HL_GEMM_GELU)
        hl_gemm_gelu(rows, width, gemm->c + i * gemm->ldc, gemm->ldc);
}

static void run_thin_rows(const hl_gemm *gemm, int64_t m0, int64_t m1)
{
    for (int64_t i = m0; i < m1; i += HL_VL) {
        int64_t rows = min64(HL_VL, m1 - i);
        switch (gemm->n) {
        case 1: run_thin(1, gemm, i, rows); break;
        case 2: run_thin(2, gemm, i, rows); break;
        case 3: run_thin(3, gemm, i, rows); break;
        default: run_thin(4, gemm, i, rows); break;
        }
    }
}

/* ---- packing ---- */

HL_SIMD hl_v load_lanes(const float *at, int64_t lanes)
{
    return lanes >= HL_VL ? hl_v_load(at) : hl_v_load_n(at, lanes);
}
HL_SIMD hl_v load_row(const float *at, int64_t k_stride, int64_t lanes, int64_t left)
{
    (void)k_stride, (void)left;
    return load_lanes(at, lanes);
}
HL_SIMD hl_v pick_row(const float *at, int64_t k_stride, int64_t n_stride, int64_t lanes,
                      int64_t left)
{
    (void)k_stride, (void)left;
    return pick_lanes(at, n_stride, lanes);
}

HL_SIMD hl_v pick_term(const hl_gemm_word *turned, int64_t a, int64_t b)
{
    (void)b;
    return hl_v_load((const float *)(const void *)(turned + a * HL_GEMM_PANEL));
}

#define SOURCE     float
#define PACK(name) name##_f32
#define TERMS      1
#define load_words load_row
#define load_run   load_lanes
#define pick_words pick_row
#define pick_term  pick_term
#include "kernels/cpu/gemm_pack.h"

/* A is read in place, one line of it per tile and k. Only where its rows lie a multiple of 4 KB
 * apart, all in one cache set, and a tile uses little of each line, packing is faster. */
enum { PACK_A_STRIPS = 5 /* strips that pay for it */ };
static bool packs_a(int64_t n, int64_t lda)
{
    return !REGISTERS_32 && lda % 1024 == 0 && n >= PACK_A_STRIPS * HL_GEMM_PANEL;
}

/* Rows of A into tiles, column after column within a tile. Whole vectors are stored, each over
 * what the one before wrote too much: masked stores are slow on AMD. */
static void pack_tiles(int64_t k, int64_t rows, const float *a, int64_t lda, float *packed)
{
    row_split split = split_rows(rows, HEIGHT_OF[2]);
    for (int64_t i = 0; i < k; i++, a += lda) {
        const float *from = a;
        float *tile = packed;
        prefetch_row_f32(a, lda, rows);
        for (int64_t t = 0; t < split.n_tiles; t++) {
            int64_t h = split.height + (t < split.n_taller);
            for (int64_t v = 0; v < h; v += HL_VL)
                hl_v_store(tile + i * h + v, hl_v_load_n(from + v, min64(HL_VL, h - v)));
            from += h, tile += k * h + TILE_GAP;
        }
    }
}

static hl_gemm_columns view_columns(int64_t k, int64_t m, int64_t n, const void *a, int64_t lda,
                                    hl_gemm_word *packed)
{
    if (!packs_a(n, lda)) return (hl_gemm_columns){.at = a, .stride = lda * (int64_t)sizeof(float)};
    pack_tiles(k, m, a, lda, (float *)(void *)packed);
    return (hl_gemm_columns){.at = packed, .is_tiled = true};
}

/* ---- the type ---- */

/* A block of K and a panel of B are 128 KB with AVX-512, and go by in the second-level cache. */
const hl_gemm_type hl_gemm_f32 = {
    .bytes = sizeof(float),
    .terms = TERMS,
    .rows_best = HL_GEMM_ROWS_BEST,
    .m_block = 10 * HL_GEMM_ROWS_BEST,
    .k_block = 1024,
    .tn_block = 512,
    .tiles = {TILES(TILE_ENTRY)},
    .pack_f32 = &packer_f32,
    .view_columns = view_columns,
    .thin_max = THIN_MAX,
    .run_thin = run_thin_rows,
};
