/* Attention to sampled places of several images (Zhu et al. 2021): a loop over places and their
 * four pixels. */
#include <math.h>

#include "kernels/ref/ref.h"

typedef struct sizes {
    int64_t N, S, M, D, Lq, L, P;
    const hl_attrs_images *images;
    const double *value, *location, *weight;
} sizes;

static sizes read_sizes(const hl_ref_call *call, void *const *args, int first)
{
    const int64_t *value = call->in[first].shape.dim, *location = call->in[first + 1].shape.dim;
    return (sizes){value[0],    value[1],        value[2],       value[3],
                   location[1], location[3],     location[4],    &call->attrs.images,
                   args[first], args[first + 1], args[first + 2]};
}

/* One of the four pixels around a place: its row of value, its share, and what that changes by when
 * the place moves by a pixel. */
typedef struct corner {
    int64_t row; /* in (N,S,M); -1: beyond the edges */
    double share, by_x, by_y;
} corner;

/* The corners of place i of (N,Lq,M,L,P). */
static void find_corners(const sizes *n, int64_t i, corner out[4])
{
    int64_t l = i / n->P % n->L, m = i / n->P / n->L % n->M;
    int64_t sample = i / n->P / n->L / n->M / n->Lq, begin = 0;
    for (int64_t k = 0; k < l; k++) begin += n->images->heights.at[k] * n->images->widths.at[k];
    int64_t h = n->images->heights.at[l], w = n->images->widths.at[l];
    double x = n->location[2 * i] * (double)w - 0.5, y = n->location[2 * i + 1] * (double)h - 0.5;
    bool is_near = x > -1 && x < (double)w && y > -1 && y < (double)h;
    for (int k = 0; k < 4; k++) {
        out[k] = (corner){.row = -1};
        if (!is_near) continue;
        int64_t column = (int64_t)floor(x) + k % 2, row = (int64_t)floor(y) + k / 2;
        if (column < 0 || column >= w || row < 0 || row >= h) continue;
        double share_x = k % 2 ? x - floor(x) : 1 - (x - floor(x));
        double share_y = k / 2 ? y - floor(y) : 1 - (y - floor(y));
        out[k].row = (sample * n->S + begin + row * w + column) * n->M + m;
        out[k].share = share_x * share_y;
        out[k].by_x = (k % 2 ? 1 : -1) * share_y;
        out[k].by_y = (k / 2 ? 1 : -1) * share_x;
    }
}

/* value, locations, weights -> out (N,Lq,M,D) */
static hl_status launch_deformable(const hl_kernel_state *state, void *const *args,
                                   const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    sizes n = read_sizes(call, args, 0);
    double *out = args[3];
    for (int64_t i = 0; i < n.N * n.Lq * n.M * n.D; i++) out[i] = 0;
    for (int64_t i = 0; i < n.N * n.Lq * n.M * n.L * n.P; i++) {
        corner corners[4];
        double *to = out + i / n.P / n.L * n.D;
        find_corners(&n, i, corners);
        for (int k = 0; k < 4; k++)
            for (int64_t d = 0; d < n.D && corners[k].row >= 0; d++)
                to[d] += n.weight[i] * corners[k].share * n.value[corners[k].row * n.D + d];
    }
    return HL_OK;
}

/* dout, value, locations, weights -> dvalue, dlocations, dweights */
static hl_status launch_deformable_grad(const hl_kernel_state *state, void *const *args,
                                        const hl_launch *launch, hl_stream *stream)
{
    (void)launch, (void)stream;
    const hl_ref_call *call = state->impl;
    sizes n = read_sizes(call, args, 1);
    const double *dout = args[0];
    double *dvalue = args[4], *dlocation = args[5], *dweight = args[6];
    for (int64_t i = 0; i < n.N * n.S * n.M * n.D; i++) dvalue[i] = 0;
    for (int64_t i = 0; i < n.N * n.Lq * n.M * n.L * n.P; i++) {
        corner corners[4];
        int64_t l = i / n.P % n.L;
        double by_weight = 0, by_x = 0, by_y = 0;
        find_corners(&n, i, corners);
        for (int k = 0; k < 4; k++)
            for (int64_t d = 0; d < n.D && corners[k].row >= 0; d++) {
                double dy = dout[i / n.P / n.L * n.D + d];
                double product = dy * n.value[corners[k].row * n.D + d];
                by_weight += corners[k].share * product;
                by_x += corners[k].by_x * product;
                by_y += corners[k].by_y * product;
                dvalue[corners[k].row * n.D + d] += n.weight[i] * corners[k].share * dy;
            }
        dweight[i] = by_weight;
        dlocation[2 * i] = n.weight[i] * (double)n.images->widths.at[l] * by_x;
        dlocation[2 * i + 1] = n.weight[i] * (double)n.images->heights.at[l] * by_y;
    }
    return HL_OK;
}

static const hl_kernel kernels[] = {
    HL_REF_KERNEL(DEFORMABLE, "deformable_attention", hl_ref_query_f64, launch_deformable),
    HL_REF_KERNEL(DEFORMABLE_GRAD, "deformable_attention_grad", hl_ref_query_f64,
                  launch_deformable_grad),
};
const hl_ref_family hl_ref_deformable = HL_REF_FAMILY(kernels);
