/* Matrix products without a library: the plain kernels that stand last behind cuBLASLt's.
 *
 * c (batch,M,N) = a (batch,M,K) b (batch,K,N) + bias (N), relu if asked; any strides, so transposed
 * operands need no copy, and batches by layout, so that they broadcast; bias of any float type.
 * fp32 operands: every thread sums 4 x 4 elements in fp32, one multiply-add at a time, no TF32.
 * 16-bit operands: four warps take a 64 x 64 tile by 16 x 16 x 16 products with fp32 sums, K in
 * steps of 32, the next step's tiles on their way while one is multiplied; where rows are whole 16
 * bytes they come by asynchronous copies. The order of sums is fixed by the shape: same bits every
 * run. Weight gradients add up the rows of what they multiply on the way, which is the gradient of
 * a bias; several products may be one launch.
 *
 * Launch: a block a tile of the result, or fewer: a block goes on by the grid. bf16 needs sm_80.
 * The digest: its own blocks and threads. */
#define HL_PRIM_MMA
#include "kernels/cuda/matmul.h"

#include "kernels/cuda/any.h"

enum { TILE = HL_CUDA_MATMUL_TILE };

HL_DEVICE float read_float(const void *p, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case HL_DTYPE_BF16: return hl_read((const hl_bf16 *)p, i);
    case HL_DTYPE_F16: return hl_read((const hl_f16 *)p, i);
    default: return ((const float *)p)[i];
    }
}

/* A product and where it lies; of the result, from row c_row on. */
template <class T> struct product {
    const T *a, *b;
    const void *bias;
    void *c;
    float *sums;
    int64_t c_row;
    const hl_cuda_matrix_product &of;
};

/* What becomes of an element of the result. */
template <class T> HL_DEVICE void finish(const product<T> &p, int64_t row, int64_t col, float value)
{
    if (p.bias) value += read_float(p.bias, p.of.bias_dtype, col);
    if (p.of.relu && !(value > 0) && value == value) value = 0;
    hl_write_float(p.c, p.of.c_dtype, (p.c_row + row) * p.of.N + col, value);
}

/* The sums of a's rows, or of b's columns, belong to the blocks of the first tile across, or down:
 * thread i adds up what stands in shared memory of row or column i. */
template <class T> struct summing {
    const product<T> &p;
    int64_t row, col;
    float sum;

    HL_MEMBER bool of_a() const
    {
        return p.of.sums == HL_CUDA_SUMS_A && col == 0;
    }
    HL_MEMBER bool of_b() const
    {
        return p.of.sums == HL_CUDA_SUMS_B && row == 0;
    }
    /* Steps of K that stand at element i of `tile`, each so far behind the one before. */
    template <class E> HL_MEMBER void add(const E *tile, int64_t step, int n_steps)
    {
        for (int k = 0; k < n_steps; k++) sum += hl_read(tile, k * step);
    }
    HL_MEMBER void store() const
    {
        int64_t i = (of_a() ? row : col) + hl_thread(), n = of_a() ? p.of.M : p.of.N;
        if (hl_thread() < TILE && i < n && (of_a() || of_b())) p.sums[i] = sum;
    }
};

/* ---- fp32 ------------------------------------------------------------------------------------ */

enum { F32_THREADS = HL_CUDA_MATMUL_F32_THREADS, F32_K = 16, F32_PITCH = TILE + 4 };

HL_DEVICE void multiply_tile(const product<float> &p, int64_t row, int64_t col)
{
    const hl_cuda_matrix_product &s = p.of;
    const float *a = p.a, *b = p.b;
    summing<float> own = {p, row, col, 0};
    HL_SHARED(float, ta, F32_K *F32_PITCH);
    HL_SHARED(float, tb, F32_K *F32_PITCH);
    int t = hl_thread(), tr = t / 16 * 4, tc = t % 16 * 4;
    float sum[4][4] = {};
    for (int64_t k0 = 0; k0 < s.K; k0 += F32_K) {
        for (int e = t; e < F32_K * TILE; e += F32_THREADS) {
            /* Neighbouring threads read along the operand's dense dim. */
            int ka = s.a_k == 1 ? e % F32_K : e / TILE, i = s.a_k == 1 ? e / F32_K : e % TILE;
            int kb = s.b_k == 1 ? e % F32_K : e / TILE, j = s.b_k == 1 ? e / F32_K : e % TILE;
            bool has_a = row + i < s.M && k0 + ka < s.K, has_b = col + j < s.N && k0 + kb < s.K;
            ta[ka * F32_PITCH + i] = has_a ? a[(row + i) * s.a_row + (k0 + ka) * s.a_k] : 0.0f;
            tb[kb * F32_PITCH + j] = has_b ? b[(k0 + kb) * s.b_k + (col + j) * s.b_col] : 0.0f;
        }
        hl_barrier();
        if (own.of_a() && t < TILE) own.add(ta + t, F32_PITCH, F32_K);
        if (own.of_b() && t < TILE) own.add(tb + t, F32_PITCH, F32_K);
        for (int k = 0; k < F32_K; k++) {
            float x[4], y[4];
            HL_UNROLL
            for (int i = 0; i < 4; i++) {
                x[i] = ta[k * F32_PITCH + tr + i];
                y[i] = tb[k * F32_PITCH + tc + i];
            }
            HL_UNROLL
            for (int i = 0; i < 4; i++) {
                HL_UNROLL
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
            }
        }
        hl_barrier();
    }
    HL_UNROLL
    for (int i = 0; i < 4; i++) {
        HL_UNROLL
        for (int j = 0; j < 4; j++)
            if (row + tr + i < s.M && col + tc + j < s.N)
                finish(p, row + tr + i, col + tc + j, sum[i][j]);
    }
    own.store();
}

/* ---- 16 bits --------------------------------------------------------------------------------- */

enum {
    REDUCED_THREADS = HL_CUDA_MATMUL_REDUCED_THREADS,
    REDUCED_K = 32,
    PITCH_A = REDUCED_K + 16,
    PITCH_B = TILE + 16,
    PITCH_C = TILE + 8
};

/* dst[i * pitch + j] = src[(r0 + i) * row + (c0 + j) * col], 0 outside (rows, cols); height x
 * width, width a multiple of 8. */
template <class T>
HL_DEVICE void load_tile(T *dst, int pitch, int height, int width, const T *src, int64_t rows,
                         int64_t cols, int64_t row, int64_t col, int64_t r0, int64_t c0)
{
    bool is_dense = col == 1 && row % 8 == 0 && (uintptr_t)src % 16 == 0;
    for (int e = hl_thread(); is_dense && e < height * width / 8; e += REDUCED_THREADS) {
        int i = e / (width / 8), j = e % (width / 8) * 8;
        if (r0 + i < rows && c0 + j + 8 <= cols) {
            hl_async_copy16(dst + i * pitch + j, src + (r0 + i) * row + c0 + j);
            continue;
        }
        for (int k = 0; k < 8; k++) {
            bool is_inside = r0 + i < rows && c0 + j + k < cols;
            dst[i * pitch + j + k] = is_inside ? src[(r0 + i) * row + c0 + j + k] : T{0};
        }
    }
    for (int e = hl_thread(); !is_dense && e < height * width; e += REDUCED_THREADS) {
        int i = col == 1 ? e / width : e % height, j = col == 1 ? e % width : e / height;
        bool is_inside = r0 + i < rows && c0 + j < cols;
        dst[i * pitch + j] = is_inside ? src[(r0 + i) * row + (c0 + j) * col] : T{0};
    }
}

template <class T> HL_DEVICE void multiply_tile(const product<T> &p, int64_t row, int64_t col)
{
    const hl_cuda_matrix_product &s = p.of;
    const T *a = p.a, *b = p.b;
    summing<T> own = {p, row, col, 0};
    /* Sums go where operands were: the less memory, the more blocks a multiprocessor has. */
    enum { ROOM_A = 2 * TILE * PITCH_A, ROOM_B = 2 * REDUCED_K * PITCH_B };
    static_assert((ROOM_A + ROOM_B) * sizeof(T) >= TILE * PITCH_C * sizeof(float), "they fit");
    HL_SHARED(T, room, ROOM_A + ROOM_B);
    T *ta = room, *tb = ta + ROOM_A;
    float *tc = (float *)ta;
    int warp = hl_thread() / 32, wr = warp / 2 * 32, wc = warp % 2 * 32;
    hl_tile_c sum[2][2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) hl_mma_zero(sum[i][j]);
    int n_steps = (int)((s.K + REDUCED_K - 1) / REDUCED_K);
    for (int step = -1; step < n_steps; step++) {
        int next = step + 1, at = next & 1;
        if (next < n_steps) {
            load_tile(ta + at * TILE * PITCH_A, PITCH_A, TILE, REDUCED_K, a, s.M, s.K, s.a_row,
                      s.a_k, row, (int64_t)next * REDUCED_K);
            load_tile(tb + at * REDUCED_K * PITCH_B, PITCH_B, REDUCED_K, TILE, b, s.K, s.N, s.b_k,
                      s.b_col, (int64_t)next * REDUCED_K, col);
        }
        hl_async_commit();
        if (step < 0) continue;
        hl_async_wait<1>();
        hl_barrier();
        const T *from_a = ta + (step & 1) * TILE * PITCH_A;
        const T *from_b = tb + (step & 1) * REDUCED_K * PITCH_B;
        if (own.of_a() && hl_thread() < TILE) own.add(from_a + hl_thread() * PITCH_A, 1, REDUCED_K);
        if (own.of_b() && hl_thread() < TILE) own.add(from_b + hl_thread(), PITCH_B, REDUCED_K);
        for (int k = 0; k < REDUCED_K; k += 16) {
            hl_tile_a<T> x[2];
            hl_tile_b<T> y[2];
            for (int i = 0; i < 2; i++) {
                hl_mma_load(x[i], from_a + (wr + 16 * i) * PITCH_A + k, PITCH_A);
                hl_mma_load(y[i], from_b + k * PITCH_B + wc + 16 * i, PITCH_B);
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++) hl_mma(sum[i][j], x[i], y[j]);
        }
        hl_barrier();
    }
    hl_async_wait<0>();
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            hl_mma_store(tc + (wr + 16 * i) * PITCH_C + wc + 16 * j, sum[i][j], PITCH_C);
    hl_barrier();
    for (int e = hl_thread(); e < TILE * TILE; e += REDUCED_THREADS) {
        int64_t i = row + e / TILE, j = col + e % TILE;
        if (i < s.M && j < s.N) finish(p, i, j, tc[e / TILE * PITCH_C + e % TILE]);
    }
    own.store();
    hl_barrier();
}

/* ---- kernels --------------------------------------------------------------------------------- */

HL_DEVICE int64_t count_tiles(int64_t n)
{
    return (n + TILE - 1) / TILE;
}

/* Every n_blocks-th tile of the products of a batch, from `block` on. */
template <class T>
HL_DEVICE void multiply(const hl_cuda_matmul_at &at, const hl_cuda_matrix_product &of,
                        const hl_cuda_layout *a, const hl_cuda_layout *b, int64_t block,
                        int64_t n_blocks)
{
    int64_t across = count_tiles(of.N), size = across * count_tiles(of.M);
    for (int64_t i = block; i < (a ? a->n : 1) * size; i += n_blocks) {
        int64_t z = i / size, tile = i % size;
        product<T> one = {(const T *)at.a, (const T *)at.b, at.bias, at.c, at.sums, z * of.M, of};
        if (a) one.a += hl_layout_offset(*a, z);
        if (b) one.b += hl_layout_offset(*b, z);
        multiply_tile(one, tile / across * TILE, tile % across * TILE);
    }
}

#define KERNEL(T, suffix, n_threads)                                                               \
    HL_CUDA_ENTRY_OF(matmul, suffix, n_threads, p)                                                 \
    {                                                                                              \
        multiply<T>(p.at, p.of, &p.a, &p.b, hl_block_x(), hl_blocks_x());                          \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(matmul_list, suffix, n_threads, p)                                            \
    {                                                                                              \
        int i = 0;                                                                                 \
        while (i + 1 < p.n && hl_block_x() >= p.first_block[i + 1]) i++;                           \
        int first = p.first_block[i];                                                              \
        multiply<T>(p.at.of[i], p.of[i], NULL, NULL, hl_block_x() - first,                         \
                    p.first_block[i + 1] - first);                                                 \
    }
KERNEL(float, f32, F32_THREADS)
KERNEL(hl_bf16, bf16, REDUCED_THREADS)
KERNEL(hl_f16, f16, REDUCED_THREADS)

/* ---- digests --------------------------------------------------------------------------------- */

/* What a thread reads, each word weighed by where it stands. */
HL_CUDA_ENTRY(digest, HL_CUDA_DIGEST_THREADS, p)
{
    uint64_t sum = 0;
    for (int64_t i = HL_GRID_FIRST; i < p.n; i += HL_GRID_STEP)
        sum = (sum + p.at.src[i] + 1) * 0x9E3779B97F4A7C15ull;
    p.at.sums[HL_GRID_FIRST] = sum;
}
