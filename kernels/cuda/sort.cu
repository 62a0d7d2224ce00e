/* Sorting rows, and places in sorted rows.
 *
 * A tile of a row is sorted by a block in shared memory, by Batcher's bitonic network (1968): of
 * entries, a key with its place below it, of which no two are equal, so that the order is stable
 * though the network is not. Rows shorter than a tile share a block. Of the first k of a longer row
 * the first k of its tiles are sorted again, until they fit one tile. A longer row of which more is
 * wanted goes through the radix sort of index.cu, together with all others: by the digits of its
 * keys, then by those of its row.
 *
 * A step of the network whose pairs lie within 64 neighbours is a warp's own, since the same warp
 * has these in every such step: it waits for no other warp.
 *
 * Rejected: a kernel for each dtype, since an element's key is made once and compared often.
 *
 * Launch: any grid; tiles: HL_CUDA_TILE_SORT_THREADS, others: any threads. */
#include "kernels/cuda/sort.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/order.h"

enum {
    THREADS = HL_CUDA_ELEMENT_THREADS,
    TILE_THREADS = HL_CUDA_TILE_SORT_THREADS,
    TILE = HL_CUDA_TILE_SORT,
    WARP_SPAN = 64 /* elements that a warp compares in pairs */
};

/* values[to] = x[from] */
HL_DEVICE void move_element(void *values, int64_t to, const void *x, int64_t from, int32_t bytes)
{
    switch (bytes) {
    case 8: ((uint64_t *)values)[to] = ((const uint64_t *)x)[from]; break;
    case 4: ((uint32_t *)values)[to] = ((const uint32_t *)x)[from]; break;
    case 2: ((uint16_t *)values)[to] = ((const uint16_t *)x)[from]; break;
    default: ((uint8_t *)values)[to] = ((const uint8_t *)x)[from]; break;
    }
}

/* ---- entries --------------------------------------------------------------------------------- */

/* A key of 32 bits stands above its place. */
struct narrow {
    typedef uint64_t entry;
    static HL_MEMBER uint64_t make(uint64_t key, int64_t place)
    {
        return key << 32 | (uint64_t)place;
    }
    static HL_MEMBER uint64_t last() /* behind all others */
    {
        return ~(uint64_t)0;
    }
    static HL_MEMBER int64_t place(uint64_t entry)
    {
        return (int64_t)(entry & 0xFFFFFFFF);
    }
    static HL_MEMBER bool is_less(uint64_t a, uint64_t b)
    {
        return a < b;
    }
};
struct wide {
    typedef hl_cuda_wide_entry entry;
    static HL_MEMBER entry make(uint64_t key, int64_t place)
    {
        return {key, (uint64_t)place};
    }
    static HL_MEMBER entry last()
    {
        return {~(uint64_t)0, ~(uint64_t)0};
    }
    static HL_MEMBER int64_t place(const entry &one)
    {
        return (int64_t)one.place;
    }
    static HL_MEMBER bool is_less(const entry &a, const entry &b)
    {
        return a.key < b.key || (a.key == b.key && a.place < b.place);
    }
};

/* Sorts each 2^tile_bits of the first n entries, a multiple of that. */
template <class E, class S> HL_DEVICE void sort_shared(S &shared, int n, int tile_bits)
{
    typedef typename E::entry entry;
    int tile = 1 << tile_bits;
    for (int size = 2; size <= tile; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            for (int p = hl_thread(); p < n / 2; p += TILE_THREADS) {
                int i = 2 * p - (p & (stride - 1)), j = i + stride;
                bool ascends = size == tile || (i & size) == 0;
                entry a = shared[i], b = shared[j];
                if (E::is_less(b, a) != ascends) continue;
                shared[i] = b;
                shared[j] = a;
            }
            int next = stride > 1 ? stride / 2 : size;
            if (stride < WARP_SPAN && next < WARP_SPAN)
                hl_warp_sync(HL_WARP_ALL);
            else
                hl_barrier();
        }
    }
}

template <class E> HL_DEVICE void sort_tiles(const hl_cuda_sort_tiles_params &p)
{
    typedef typename E::entry entry;
    HL_SHARED(entry, shared, TILE);
    const entry *from = (const entry *)p.at.from;
    entry *to = (entry *)p.at.to;
    int tile = 1 << p.tile_bits, k = (int)p.k;
    int64_t n_tiles = (p.N + tile - 1) >> p.tile_bits, n_all = p.R * n_tiles;
    int64_t per_block = TILE >> p.tile_bits;
    for (int64_t first = hl_block_x() * per_block; first < n_all;
         first += hl_blocks_x() * per_block) {
        int n = (int)(n_all - first < per_block ? n_all - first : per_block);
        for (int i = hl_thread(); i < n << p.tile_bits; i += TILE_THREADS) {
            int64_t u = first + (i >> p.tile_bits), r = u / n_tiles;
            int64_t c = (u - r * n_tiles) * tile + (i & (tile - 1));
            if (c >= p.N)
                shared[i] = E::last();
            else if (from)
                shared[i] = from[r * p.N + c];
            else
                shared[i] = E::make(hl_order_key_any(p.at.x, p.dtype, r * p.X + c) ^ p.mask, c);
        }
        hl_barrier();
        sort_shared<E>(shared, n << p.tile_bits, p.tile_bits);
        hl_barrier();
        for (int i = hl_thread(); i < n * k; i += TILE_THREADS) {
            entry one = shared[(i / k << p.tile_bits) + i % k];
            int64_t u = first + i / k, o = u * k + i % k;
            if (to) {
                to[o] = one;
                continue;
            }
            p.at.places[o] = E::place(one);
            move_element(p.at.values, o, p.at.x, u * p.X + E::place(one), p.bytes);
        }
        hl_barrier();
    }
}
HL_CUDA_ENTRY_OF(sort_tiles, 32, TILE_THREADS, p)
{
    sort_tiles<narrow>(p);
}
HL_CUDA_ENTRY_OF(sort_tiles, 64, TILE_THREADS, p)
{
    sort_tiles<wide>(p);
}

/* ---- by radix -------------------------------------------------------------------------------- */

HL_CUDA_ENTRY(sort_words, THREADS, p)
{
    HL_FOR_GRID(i, p.R * p.N)
    {
        int64_t from = i;
        if (p.word == HL_CUDA_SORT_LOW)
            p.at.values[i] = (int32_t)i;
        else
            from = p.at.values[i];
        if (p.word == HL_CUDA_SORT_ROW) {
            p.at.keys[i] = (uint32_t)((uint32_t)from / (uint32_t)p.N);
            continue;
        }
        uint64_t key = hl_order_key_any(p.at.x, p.dtype, from) ^ p.mask;
        p.at.keys[i] = (uint32_t)(p.word == HL_CUDA_SORT_LOW ? key : key >> 32);
    }
}

HL_CUDA_ENTRY(sort_take, THREADS, p)
{
    HL_FOR_GRID(i, p.R * p.k)
    {
        int64_t r = i / p.k, from = p.at.from[r * p.N + (i - r * p.k)];
        p.at.places[i] = from - r * p.N;
        move_element(p.at.values, i, p.at.x, from, p.bytes);
    }
}

/* ---- places in sorted rows ------------------------------------------------------------------- */

HL_CUDA_ENTRY(searchsorted, THREADS, p)
{
    HL_FOR_GRID(i, p.n)
    {
        int64_t row = p.per_row == p.n ? 0 : i / p.per_row * p.N, low = 0, high = p.N;
        uint64_t value = hl_order_key_any(p.at.values, p.dtype, i);
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            uint64_t key = hl_order_key_any(p.at.sorted, p.dtype, row + middle);
            if (p.right ? key <= value : key < value)
                low = middle + 1;
            else
                high = middle;
        }
        hl_write_int(p.at.out, p.out_dtype, i, low);
    }
}
