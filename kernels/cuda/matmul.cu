/* Matrix products without a library, and convolutions as such: the plain kernels that stand last
 * behind cuBLASLt's and cuDNN's.
 *
 * A tile loop asks its operands where elements lie: a matrix at strides, or one of windows that is
 * not in memory (windows.h).
 *
 * c (batch,M,N) = a (batch,M,K) b (batch,K,N) + bias (N), relu if asked; any strides, so transposed
 * operands need no copy, and batches by layout, so that they broadcast; bias of any float type.
 * fp32 operands: every thread sums 4 x 4 elements in fp32, one multiply-add at a time, no TF32.
 * 16-bit operands: four warps take a 64 x 64 tile by 16 x 16 x 16 products with fp32 sums, K in
 * steps of 32, the next step's tiles on their way while one is multiplied; where rows are whole 16
 * bytes they come by asynchronous copies. The order of sums is fixed by the shape: same bits every
 * run. Weight gradients add up the rows of what they multiply on the way, which is the gradient of
 * a bias.
 *
 * Small products leave most of a GPU idle and wait for memory step by step. Theirs are tiles of
 * 32 x 32, each by eight warps that take every eighth step of K for themselves and wait for nobody;
 * in the end the eight sums of an element are added up, in order. Several such products may be one
 * launch.
 *
 * Launch: a block a tile of the result, or fewer: a block goes on by the grid. bf16 needs sm_80.
 * The digest: its own blocks and threads. */
#define HL_PRIM_MMA
#include "kernels/cuda/matmul.h"

#include "kernels/cuda/any.h"

enum { TILE = HL_CUDA_MATMUL_TILE };

/* An operand at strides. What operands are asked:
 *     find(r, c)   where an element lies; NULL: it is 0, outside of the matrix too
 *     n_cols       columns
 *     is_by_row()  neighbouring threads are to read along a row
 *     is_wide()    so many columns as are 16 bytes, from a multiple of that on, lie side by side,
 *                  at a multiple of 16 bytes, or are all 0 */
template <class T> struct strided {
    const T *first;
    int64_t n_rows, n_cols, row, col;

    HL_MEMBER const T *find(int64_t r, int64_t c) const
    {
        return r < n_rows && c < n_cols ? first + r * row + c * col : NULL;
    }
    HL_MEMBER bool is_by_row() const
    {
        return col == 1;
    }
    HL_MEMBER bool is_wide() const
    {
        return col == 1 && row % 8 == 0 && (uintptr_t)first % 16 == 0;
    }
};

/* Where rows of a result lie: evenly, or as a layout has them. */
struct even_rows {
    int64_t first, apart;

    HL_MEMBER int64_t find(int64_t row) const
    {
        return first + row * apart;
    }
};
struct laid_rows {
    int64_t first;
    const hl_cuda_layout &rows;

    HL_MEMBER int64_t find(int64_t row) const
    {
        return first + hl_layout_offset(rows, row);
    }
};

/* A product: its operands a (M,K) and b (K,N), and where the rest lies. */
template <class T, class A, class B, class R> struct product {
    A a;
    B b;
    const void *bias;
    void *c;
    float *sums;
    R rows;
    const hl_cuda_matrix_product &of;
};

/* What becomes of an element of the result. */
template <class P> HL_DEVICE void finish(const P &p, int64_t row, int64_t col, float value)
{
    if (p.bias) value += hl_read_float(p.bias, p.of.bias_dtype, col);
    if (p.of.relu && !(value > 0) && value == value) value = 0;
    hl_write_float(p.c, p.of.c_dtype, p.rows.find(row) + col, value);
}

/* The sums of a's rows, or of b's columns, belong to the blocks of the first tile across, or down:
 * lane i adds up what stands in shared memory of row or column i. */
template <class P> struct summing {
    const P &p;
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
    HL_MEMBER void store(int lane) const
    {
        int64_t i = (of_a() ? row : col) + lane, n = of_a() ? p.of.M : p.of.N;
        if (i < n && (of_a() || of_b())) p.sums[i] = sum;
    }
};

/* ---- fp32 ------------------------------------------------------------------------------------ */

enum { F32_THREADS = HL_CUDA_MATMUL_F32_THREADS, F32_K = 16, F32_PITCH = TILE + 4 };

/* dst[k * pitch + i] = a(i0 + i, k0 + k), or b(k0 + k, i0 + i), for `size` rows of a, or columns of
 * b, and F32_K steps, by threads of which this is number t. */
template <int size, int n_threads, bool is_a, class M>
HL_DEVICE void load_steps(float *dst, int pitch, const M &src, int64_t i0, int64_t k0, int t)
{
    bool is_along = src.is_by_row() == is_a;
    for (int e = t; e < F32_K * size; e += n_threads) {
        int k = is_along ? e % F32_K : e / size, i = is_along ? e / F32_K : e % size;
        const float *at = is_a ? src.find(i0 + i, k0 + k) : src.find(k0 + k, i0 + i);
        dst[k * pitch + i] = at ? *at : 0.0f;
    }
}

template <class A, class B, class R>
HL_DEVICE void multiply_tile(const product<float, A, B, R> &p, int64_t row, int64_t col)
{
    const hl_cuda_matrix_product &s = p.of;
    summing<product<float, A, B, R>> own = {p, row, col, 0};
    HL_SHARED(float, ta, F32_K *F32_PITCH);
    HL_SHARED(float, tb, F32_K *F32_PITCH);
    int t = hl_thread(), tr = t / 16 * 4, tc = t % 16 * 4;
    float sum[4][4] = {};
    for (int64_t k0 = 0; k0 < s.K; k0 += F32_K) {
        load_steps<TILE, F32_THREADS, true>(ta, F32_PITCH, p.a, row, k0, t);
        load_steps<TILE, F32_THREADS, false>(tb, F32_PITCH, p.b, col, k0, t);
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
    if (hl_thread() < TILE) own.store(hl_thread());
}

/* ---- 16 bits --------------------------------------------------------------------------------- */

enum {
    REDUCED_THREADS = HL_CUDA_MATMUL_REDUCED_THREADS,
    REDUCED_K = 32,
    PITCH_A = REDUCED_K + 16,
    PITCH_B = TILE + 16,
    PITCH_C = TILE + 8
};

/* dst[i * pitch + j] = src(r0 + i, c0 + j); height x width, width a multiple of 8; by threads of
 * which this is number t. */
template <int n_threads, class T, class M>
HL_DEVICE void load_tile(T *dst, int pitch, int height, int width, const M &src, int64_t r0,
                         int64_t c0, int t)
{
    bool is_wide = src.is_wide(), is_by_row = src.is_by_row();
    for (int e = t; is_wide && e < height * width / 8; e += n_threads) {
        int i = e / (width / 8), j = e % (width / 8) * 8;
        bool is_whole = c0 + j + 8 <= src.n_cols;
        const T *at = is_whole ? src.find(r0 + i, c0 + j) : NULL;
        if (at) {
            hl_async_copy16(dst + i * pitch + j, at);
            continue;
        }
        for (int k = 0; k < 8; k++) {
            at = is_whole ? NULL : src.find(r0 + i, c0 + j + k);
            dst[i * pitch + j + k] = at ? *at : T{0};
        }
    }
    for (int e = t; !is_wide && e < height * width; e += n_threads) {
        int i = is_by_row ? e / width : e % height, j = is_by_row ? e % width : e / height;
        const T *at = src.find(r0 + i, c0 + j);
        dst[i * pitch + j] = at ? *at : T{0};
    }
}

template <class T, class A, class B, class R>
HL_DEVICE void multiply_tile(const product<T, A, B, R> &p, int64_t row, int64_t col)
{
    const hl_cuda_matrix_product &s = p.of;
    summing<product<T, A, B, R>> own = {p, row, col, 0};
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
            int64_t k0 = (int64_t)next * REDUCED_K;
            load_tile<REDUCED_THREADS>(ta + at * TILE * PITCH_A, PITCH_A, TILE, REDUCED_K, p.a, row,
                                       k0, hl_thread());
            load_tile<REDUCED_THREADS>(tb + at * REDUCED_K * PITCH_B, PITCH_B, REDUCED_K, TILE, p.b,
                                       k0, col, hl_thread());
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
    if (hl_thread() < TILE) own.store(hl_thread());
    hl_barrier();
}

/* ---- small products -------------------------------------------------------------------------- */

enum {
    SMALL = HL_CUDA_MATMUL_SMALL_TILE,
    WARPS = HL_CUDA_MATMUL_SMALL_THREADS / 32,
    PITCH_SMALL = SMALL + 8, /* of 16 bits */
    PITCH_PART = SMALL + 4   /* of floats */
};

/* One warp's part of a tile: what it holds of the operands in shared memory, and its sums. */
template <class T> struct warp_part {
    enum { K = REDUCED_K, ROOM = (SMALL + K) * PITCH_SMALL };
    T *ta, *tb;
    int lane;
    hl_tile_c sum[2][2];

    HL_MEMBER void begin(T *room)
    {
        ta = room, tb = room + SMALL * PITCH_SMALL, lane = hl_thread() % 32;
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) hl_mma_zero(sum[i][j]);
    }
    template <class P> HL_MEMBER void load(const P &p, int64_t row, int64_t col, int64_t k0) const
    {
        load_tile<32>(ta, PITCH_SMALL, SMALL, K, p.a, row, k0, lane);
        load_tile<32>(tb, PITCH_SMALL, K, SMALL, p.b, k0, col, lane);
        hl_async_commit();
        hl_async_wait<0>();
    }
    template <class P> HL_MEMBER void add_sums(summing<P> &own) const
    {
        if (own.of_a()) own.add(ta + lane * PITCH_SMALL, 1, K);
        if (own.of_b()) own.add(tb + lane, PITCH_SMALL, K);
    }
    HL_MEMBER void multiply()
    {
        for (int k = 0; k < K; k += 16) {
            hl_tile_a<T> x[2];
            hl_tile_b<T> y[2];
            for (int i = 0; i < 2; i++) {
                hl_mma_load(x[i], ta + 16 * i * PITCH_SMALL + k, PITCH_SMALL);
                hl_mma_load(y[i], tb + k * PITCH_SMALL + 16 * i, PITCH_SMALL);
            }
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++) hl_mma(sum[i][j], x[i], y[j]);
        }
    }
    HL_MEMBER void store(float *part) const
    {
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++)
                hl_mma_store(part + 16 * i * PITCH_PART + 16 * j, sum[i][j], PITCH_PART);
    }
};

/* A thread of the warp sums 4 x 8 elements. */
template <> struct warp_part<float> {
    enum { K = F32_K, ROOM = 2 * K * PITCH_PART };
    float *ta, *tb;
    int lane, tr, tc;
    float sum[4][8];

    HL_MEMBER void begin(float *room)
    {
        ta = room, tb = room + K * PITCH_PART, lane = hl_thread() % 32;
        tr = lane / 4 * 4, tc = lane % 4 * 8;
        HL_UNROLL
        for (int i = 0; i < 4; i++) {
            HL_UNROLL
            for (int j = 0; j < 8; j++) sum[i][j] = 0;
        }
    }
    template <class P> HL_MEMBER void load(const P &p, int64_t row, int64_t col, int64_t k0) const
    {
        load_steps<SMALL, 32, true>(ta, PITCH_PART, p.a, row, k0, lane);
        load_steps<SMALL, 32, false>(tb, PITCH_PART, p.b, col, k0, lane);
    }
    template <class P> HL_MEMBER void add_sums(summing<P> &own) const
    {
        if (own.of_a()) own.add(ta + lane, PITCH_PART, K);
        if (own.of_b()) own.add(tb + lane, PITCH_PART, K);
    }
    HL_MEMBER void multiply()
    {
        for (int k = 0; k < K; k++) {
            float x[4], y[8];
            HL_UNROLL
            for (int i = 0; i < 4; i++) x[i] = ta[k * PITCH_PART + tr + i];
            HL_UNROLL
            for (int j = 0; j < 8; j++) y[j] = tb[k * PITCH_PART + tc + j];
            HL_UNROLL
            for (int i = 0; i < 4; i++) {
                HL_UNROLL
                for (int j = 0; j < 8; j++) sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
            }
        }
    }
    HL_MEMBER void store(float *part) const
    {
        HL_UNROLL
        for (int i = 0; i < 4; i++) {
            HL_UNROLL
            for (int j = 0; j < 8; j++) part[(tr + i) * PITCH_PART + tc + j] = sum[i][j];
        }
    }
};

template <class T, class A, class B, class R>
HL_DEVICE void multiply_small(const product<T, A, B, R> &p, int64_t row, int64_t col)
{
    enum { ROOM = WARPS * warp_part<T>::ROOM, PART = SMALL * PITCH_PART };
    static_assert(ROOM * sizeof(T) >= WARPS * PART * sizeof(float), "the parts' sums fit");
    HL_SHARED(T, room, ROOM);
    HL_SHARED(float, sums, WARPS * 32);
    int t = hl_thread(), warp = t / 32;
    T *operands = room;
    float *parts = (float *)operands;
    summing<product<T, A, B, R>> own = {p, row, col, 0};
    warp_part<T> part;
    part.begin(operands + warp * warp_part<T>::ROOM);
    for (int64_t k0 = warp * part.K; k0 < p.of.K; k0 += WARPS * part.K) {
        part.load(p, row, col, k0);
        hl_warp_sync(HL_WARP_ALL);
        part.add_sums(own);
        part.multiply();
        hl_warp_sync(HL_WARP_ALL);
    }
    hl_barrier(); /* sums go where operands were */
    part.store(parts + warp * PART);
    sums[t] = own.sum;
    hl_barrier();
    for (int e = t; e < SMALL * SMALL; e += WARPS * 32) {
        int i = e / SMALL, j = e % SMALL;
        float sum = 0;
        HL_UNROLL
        for (int w = 0; w < WARPS; w++) sum += parts[w * PART + i * PITCH_PART + j];
        if (row + i < p.of.M && col + j < p.of.N) finish(p, row + i, col + j, sum);
    }
    own.sum = 0;
    for (int w = 0; w < WARPS && t < SMALL; w++) own.sum += sums[w * 32 + t];
    if (t < SMALL) own.store(t);
    hl_barrier();
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Every n_blocks-th tile of the products of a batch, from `block` on; size: of a tile. F is given
 * the number of the product, a row and a column. */
template <class F>
HL_DEVICE void for_tiles(const hl_cuda_matrix_product &of, int64_t n_batch, int size, int64_t block,
                         int64_t n_blocks, F multiply_one)
{
    int64_t across = (of.N + size - 1) / size, n_tiles = across * ((of.M + size - 1) / size);
    for (int64_t i = block; i < n_batch * n_tiles; i += n_blocks) {
        int64_t tile = i % n_tiles;
        multiply_one(i / n_tiles, tile / across * size, tile % across * size);
    }
}

template <class T> using matrices = product<T, strided<T>, strided<T>, even_rows>;

/* Number z of a batch, whose operands begin at these elements. */
template <class T>
HL_DEVICE matrices<T> make_matrices(const hl_cuda_matmul_at &at, const hl_cuda_matrix_product &of,
                                    int64_t z, int64_t a, int64_t b)
{
    return {{(const T *)at.a + a, of.M, of.K, of.a_row, of.a_k},
            {(const T *)at.b + b, of.K, of.N, of.b_k, of.b_col},
            at.bias,
            at.c,
            at.sums,
            {z * of.M * of.N, of.N},
            of};
}

template <class T>
HL_DEVICE void multiply_alone(const hl_cuda_matmul_at &at, const hl_cuda_matrix_product &of,
                              int64_t block, int64_t n_blocks)
{
    for_tiles(of, 1, SMALL, block, n_blocks, [&](int64_t, int64_t row, int64_t col) {
        multiply_small(make_matrices<T>(at, of, 0, 0, 0), row, col);
    });
}

#define KERNELS(T, suffix, n_threads)                                                              \
    HL_CUDA_ENTRY_OF(matmul, suffix, n_threads, p)                                                 \
    {                                                                                              \
        for_tiles(p.of, p.a.n, TILE, hl_block_x(), hl_blocks_x(),                                  \
                  [&](int64_t z, int64_t row, int64_t col) {                                       \
                      multiply_tile(make_matrices<T>(p.at, p.of, z, hl_layout_offset(p.a, z),      \
                                                     hl_layout_offset(p.b, z)),                    \
                                    row, col);                                                     \
                  });                                                                              \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(matmul_small, suffix, HL_CUDA_MATMUL_SMALL_THREADS, p)                        \
    {                                                                                              \
        multiply_alone<T>(p.at, p.of, hl_block_x(), hl_blocks_x());                                \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(matmul_list, suffix, HL_CUDA_MATMUL_SMALL_THREADS, p)                         \
    {                                                                                              \
        int i = 0;                                                                                 \
        while (i + 1 < p.n && hl_block_x() >= p.first_block[i + 1]) i++;                           \
        int first = p.first_block[i];                                                              \
        multiply_alone<T>(p.at.of[i], p.of[i], hl_block_x() - first,                               \
                          p.first_block[i + 1] - first);                                           \
    }
KERNELS(float, f32, F32_THREADS)
KERNELS(hl_bf16, bf16, REDUCED_THREADS)
KERNELS(hl_f16, f16, REDUCED_THREADS)

/* ---- convolutions ---------------------------------------------------------------------------- */

/* One group after another. */
template <class T> HL_DEVICE void convolve(const hl_cuda_conv_params &p)
{
    typedef product<T, hl_windows<T>, strided<T>, laid_rows> group_product;
    const hl_cuda_matrix_product &of = p.of;
    for_tiles(of, p.groups, TILE, hl_block_x(), hl_blocks_x(),
              [&](int64_t g, int64_t row, int64_t col) {
                  const char *bias = (const char *)p.at.bias;
                  int64_t bias_bytes = of.bias_dtype == HL_DTYPE_F32 ? 4 : 2;
                  group_product one = {{(const T *)p.at.x + g * p.in, 0, of.M, of.K, p.windows},
                                       {(const T *)p.at.w + g * of.K * of.N, of.K, of.N, of.N, 1},
                                       bias ? bias + g * of.N * bias_bytes : NULL,
                                       p.at.c,
                                       NULL,
                                       {p.first + g * of.N, p.rows},
                                       of};
                  multiply_tile(one, row, col);
              });
}

/* One share after another, and of each the groups. */
template <class T> HL_DEVICE void convolve_pixels(const hl_cuda_conv_weight_grad_params &p)
{
    typedef product<T, strided<T>, hl_windows<T>, even_rows> share_product;
    const hl_cuda_matrix_product &of = p.of;
    for_tiles(of, p.groups * p.shares, TILE, hl_block_x(), hl_blocks_x(),
              [&](int64_t z, int64_t row, int64_t col) {
                  int64_t g = z % p.groups, first = z / p.groups * of.K;
                  int64_t n = p.windows.n_pixels - first;
                  hl_cuda_matrix_product own = of;
                  own.K = n < of.K ? n : of.K;
                  const T *y = (const T *)p.at.y + first * of.a_k + g * of.M;
                  share_product one = {
                      {y, of.M, own.K, 1, of.a_k},
                      {(const T *)p.at.x + g * p.in, first, own.K, of.N, p.windows},
                      NULL,
                      p.at.parts,
                      NULL,
                      {z * of.M * of.N, of.N},
                      own};
                  multiply_tile(one, row, col);
              });
}

#define CONV_KERNELS(T, suffix, n_threads)                                                         \
    HL_CUDA_ENTRY_OF(conv, suffix, n_threads, p)                                                   \
    {                                                                                              \
        convolve<T>(p);                                                                            \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(conv_weight_grad, suffix, n_threads, p)                                       \
    {                                                                                              \
        convolve_pixels<T>(p);                                                                     \
    }
CONV_KERNELS(float, f32, F32_THREADS)
CONV_KERNELS(hl_bf16, bf16, REDUCED_THREADS)
CONV_KERNELS(hl_f16, f16, REDUCED_THREADS)

/* ---- digests --------------------------------------------------------------------------------- */

/* What a thread reads, each word weighed by where it stands. */
HL_CUDA_ENTRY(digest, HL_CUDA_DIGEST_THREADS, p)
{
    uint64_t sum = 0;
    for (int64_t i = HL_GRID_FIRST; i < p.n; i += HL_GRID_STEP)
        sum = (sum + p.at.src[i] + 1) * 0x9E3779B97F4A7C15ull;
    p.at.sums[HL_GRID_FIRST] = sum;
}
