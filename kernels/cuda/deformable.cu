/* Attention to sampled places of several images.
 *
 * Forward a thread has a channel of a head of a query. Backward there are two launches. For the
 * gradients of locations and weights a warp has a place, its lanes the channels. For that of value
 * a block has a tile of an image's pixels: it goes through all places of the image in their order,
 * lists those that touch the tile, and adds them; each sum has one thread that adds to it, in the
 * places' order, so that the bits are the same every run.
 *
 * Rejected: atomic sums, as in the authors' kernels, whose bits change with the order of threads; a
 * sort of the places by pixel, four to each, which moves more bytes than the tiles read.
 *
 * Launch: any grid; any threads forward, whole warps for places, HL_CUDA_DEFORMABLE_THREADS for
 * value. */
#include "kernels/cuda/deformable.h"

#include "kernels/cuda/any.h"
#include "kernels/cuda/layout.h"

typedef hl_cuda_deformable_sizes sizes;

enum { TILE = HL_CUDA_DEFORMABLE_TILE, TILE_THREADS = HL_CUDA_DEFORMABLE_THREADS };

/* A place of an image, in pixels: the one above and left of it, and the shares of those to its
 * right and below. */
struct place {
    int64_t x, y;
    float right, below;
};

/* False: it is beyond the edges, or no number. */
HL_DEVICE bool find_place(const sizes &n, int64_t l, const float *location, place *out)
{
    float w = (float)n.width[l], h = (float)n.height[l];
    float x = fmaf(location[0], w, -0.5f), y = fmaf(location[1], h, -0.5f);
    if (!(x > -1 && x < w && y > -1 && y < h)) return false;
    float x_low = floorf(x), y_low = floorf(y);
    *out = {(int64_t)x_low, (int64_t)y_low, x - x_low, y - y_low};
    return true;
}

/* Corner k of a place: its pixel in S; -1: beyond the edges. */
HL_DEVICE int64_t find_pixel(const sizes &n, int64_t l, const place &at, int k)
{
    int64_t x = at.x + k % 2, y = at.y + k / 2;
    bool is_inside = x >= 0 && x < n.width[l] && y >= 0 && y < n.height[l];
    return is_inside ? n.begin[l] + y * n.width[l] + x : -1;
}

HL_DEVICE float find_share(float share, bool is_second)
{
    return is_second ? share : 1 - share;
}

HL_CUDA_ENTRY(deformable, HL_CUDA_ELEMENT_THREADS, p)
{
    const sizes &n = p.n;
    int64_t n_results = n.N * n.Lq * n.M * n.D;
    bool is_short = hl_is_short(n_results);
    HL_FOR_GRID(i, n_results)
    {
        int64_t d, m, q, head = hl_divide(i, n.D, is_short, &d);
        int64_t sample = hl_divide(hl_divide(head, n.M, is_short, &m), n.Lq, is_short, &q);
        const float *value = p.at.value + (sample * n.S * n.M + m) * n.D + d;
        float sum = 0;
        for (int64_t l = 0; l < n.L; l++)
            for (int64_t of_image = 0; of_image < n.P; of_image++) {
                int64_t at_place = (head * n.L + l) * n.P + of_image;
                place at;
                if (!find_place(n, l, p.at.location + 2 * at_place, &at)) continue;
                float weight = p.at.weight[at_place];
                HL_UNROLL
                for (int k = 0; k < 4; k++) {
                    int64_t pixel = find_pixel(n, l, at, k);
                    float share = find_share(at.right, k % 2) * find_share(at.below, k / 2);
                    if (pixel >= 0) sum = fmaf(weight * share, value[pixel * n.M * n.D], sum);
                }
            }
        p.at.y[i] = sum;
    }
}

HL_DEVICE float sum_warp(float x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) x += hl_shuffle_xor(HL_WARP_ALL, x, lanes);
    return x;
}

HL_CUDA_ENTRY(deformable_places, HL_CUDA_ELEMENT_THREADS, p)
{
    const sizes &n = p.n;
    int lane = hl_thread() % 32;
    int64_t n_places = n.N * n.Lq * n.M * n.L * n.P, n_warps = hl_threads() / 32;
    for (int64_t i = hl_block_x() * n_warps + hl_thread() / 32; i < n_places;
         i += hl_blocks_x() * n_warps) {
        int64_t l = i / n.P % n.L, head = i / n.P / n.L, m = head % n.M;
        int64_t sample = head / n.M / n.Lq;
        float by_weight = 0, by_x = 0, by_y = 0;
        place at;
        if (find_place(n, l, p.at.location + 2 * i, &at))
            for (int k = 0; k < 4; k++) {
                int64_t pixel = find_pixel(n, l, at, k);
                if (pixel < 0) continue;
                const float *value = p.at.value + ((sample * n.S + pixel) * n.M + m) * n.D;
                float x = find_share(at.right, k % 2), y = find_share(at.below, k / 2), sum = 0;
                for (int64_t d = lane; d < n.D; d += 32)
                    sum = fmaf(p.at.dy[head * n.D + d], value[d], sum);
                by_weight = fmaf(x * y, sum, by_weight);
                by_x = fmaf(k % 2 ? y : -y, sum, by_x);
                by_y = fmaf(k / 2 ? x : -x, sum, by_y);
            }
        by_weight = sum_warp(by_weight), by_x = sum_warp(by_x), by_y = sum_warp(by_y);
        if (lane == 0) {
            float weight = p.at.weight[i];
            p.at.dweight[i] = by_weight;
            p.at.dlocation[2 * i] = weight * (float)n.width[l] * by_x;
            p.at.dlocation[2 * i + 1] = weight * (float)n.height[l] * by_y;
        }
    }
}

HL_CUDA_ENTRY(deformable_value, TILE_THREADS, p)
{
    const sizes &n = p.n;
    HL_SHARED(float, sum, TILE *TILE_THREADS); /* (row, column, channel) */
    HL_SHARED(int32_t, count, TILE);
    /* Places that touch the tile: column and row in it, each from -1 on; shares, weight, query. */
    HL_SHARED(int32_t, near_pixel, TILE_THREADS);
    HL_SHARED(float, near_right, TILE_THREADS);
    HL_SHARED(float, near_below, TILE_THREADS);
    HL_SHARED(float, near_weight, TILE_THREADS);
    HL_SHARED(int32_t, near_query, TILE_THREADS);
    int lane = hl_thread() % 32, row = hl_thread() / 32;
    float *own = sum + row * TILE * 32 + lane;
    int64_t parts = (n.D + 31) / 32, n_places = n.Lq * n.P;
    for (int64_t item = hl_block_x(); item < n.N * n.M * n.tiles[n.L] * parts;
         item += hl_blocks_x()) {
        int64_t d = item % parts * 32 + lane, tile = item / parts % n.tiles[n.L], l = 0;
        int64_t m = item / parts / n.tiles[n.L] % n.M;
        int64_t sample = item / parts / n.tiles[n.L] / n.M;
        while (tile >= n.tiles[l + 1]) l++;
        int64_t across = (n.width[l] + TILE - 1) / TILE;
        int64_t x_first = (tile - n.tiles[l]) % across * TILE;
        int64_t y_first = (tile - n.tiles[l]) / across * TILE;
        for (int j = 0; j < TILE; j++) own[j * 32] = 0;
        for (int64_t begin = 0; begin < n_places; begin += TILE_THREADS) {
            int64_t i = begin + hl_thread(), q = i / n.P;
            int64_t at_place = (((sample * n.Lq + q) * n.M + m) * n.L + l) * n.P + i % n.P;
            place at = {0, 0, 0, 0};
            bool is_near = i < n_places && find_place(n, l, p.at.location + 2 * at_place, &at);
            int x = (int)(at.x - x_first), y = (int)(at.y - y_first);
            is_near = is_near && x >= -1 && x < TILE && y >= -1 && y < TILE;
            uint32_t near = hl_ballot(HL_WARP_ALL, is_near);
            hl_barrier(); /* the last list's readers are through */
            if (lane == 0) count[row] = hl_count_bits(near);
            hl_barrier();
            int to = hl_count_bits(near & ((1u << lane) - 1)), all = 0;
            for (int w = 0; w < TILE; w++) {
                if (w < row) to += count[w];
                all += count[w];
            }
            if (is_near) {
                near_pixel[to] = (y + 1) * 2 * TILE + x + 1;
                near_right[to] = at.right, near_below[to] = at.below;
                near_weight[to] = p.at.weight[at_place], near_query[to] = (int32_t)q;
            }
            hl_barrier();
            for (int k = 0; k < all; k++) {
                int down = row - (near_pixel[k] / (2 * TILE) - 1);
                if (down < 0 || down > 1 || d >= n.D) continue;
                int64_t head = (sample * n.Lq + near_query[k]) * n.M + m;
                float weight = near_weight[k] * find_share(near_below[k], down);
                float dy = weight * p.at.dy[head * n.D + d], right = near_right[k];
                int column = near_pixel[k] % (2 * TILE) - 1;
                if (column >= 0) own[column * 32] = fmaf(1 - right, dy, own[column * 32]);
                if (column + 1 < TILE)
                    own[(column + 1) * 32] = fmaf(right, dy, own[(column + 1) * 32]);
            }
        }
        int64_t y = y_first + row;
        for (int j = 0; j < TILE && x_first + j < n.width[l] && y < n.height[l]; j++) {
            int64_t pixel = n.begin[l] + y * n.width[l] + x_first + j;
            if (d < n.D) p.at.dvalue[((sample * n.S + pixel) * n.M + m) * n.D + d] = own[j * 32];
        }
    }
}
