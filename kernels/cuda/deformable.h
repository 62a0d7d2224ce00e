/* Parameters of the kernels of attention to sampled places of images. */
#ifndef HL_CUDA_DEFORMABLE_H
#define HL_CUDA_DEFORMABLE_H

#include "kernels/cuda/params.h"

/* A block has a tile of an image's pixels, a warp for each of its rows, and a channel for each of
 * their lanes. */
enum {
    HL_CUDA_DEFORMABLE_IMAGES = 8,
    HL_CUDA_DEFORMABLE_TILE = 8,
    HL_CUDA_DEFORMABLE_THREADS = 32 * HL_CUDA_DEFORMABLE_TILE
};

/* value (N,S,M,D), locations (N,Lq,M,L,P,2), weights (N,Lq,M,L,P), results (N,Lq,M,D); in S the
 * images begin at `begin`, and `tiles` counts the tiles of the images before, of all at [L]. */
typedef struct hl_cuda_deformable_sizes {
    int64_t N, S, M, D, Lq, L, P;
    int64_t height[HL_CUDA_DEFORMABLE_IMAGES], width[HL_CUDA_DEFORMABLE_IMAGES];
    int64_t begin[HL_CUDA_DEFORMABLE_IMAGES], tiles[HL_CUDA_DEFORMABLE_IMAGES + 1];
} hl_cuda_deformable_sizes;

typedef struct hl_cuda_deformable_params {
    struct {
        HL_CUDA_AT(const float) value;
        HL_CUDA_AT(const float) location;
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(float) y;
    } at;
    hl_cuda_deformable_sizes n;
} hl_cuda_deformable_params;

typedef struct hl_cuda_deformable_places_params {
    struct {
        HL_CUDA_AT(const float) dy;
        HL_CUDA_AT(const float) value;
        HL_CUDA_AT(const float) location;
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(float) dlocation;
        HL_CUDA_AT(float) dweight;
    } at;
    hl_cuda_deformable_sizes n;
} hl_cuda_deformable_places_params;

typedef struct hl_cuda_deformable_value_params {
    struct {
        HL_CUDA_AT(const float) dy;
        HL_CUDA_AT(const float) location;
        HL_CUDA_AT(const float) weight;
        HL_CUDA_AT(float) dvalue;
    } at;
    hl_cuda_deformable_sizes n;
} hl_cuda_deformable_value_params;

#endif
