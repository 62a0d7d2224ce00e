/* Attention to sampled places of several images.
 *
 * Forward, a row is a head of a query: the pixels that its places take from and their shares are
 * listed first, then added vector by vector. Backward, a row is an image of a head of a sample: all
 * that its places write is its own, so that what they add to a pixel is added in the order of
 * queries, whatever the number of threads. */
#include <math.h>

#include "kernels/cpu/rows.h"

typedef struct deformable_state {
    int64_t N, S, M, D, Lq, L, P;
    int64_t height[HL_MAX_RANK], width[HL_MAX_RANK], begin[HL_MAX_RANK]; /* of an image in S */
} deformable_state;

/* first: the operand that is the value */
static deformable_state make_state(const hl_graph *graph, const hl_node *node, int first)
{
    const hl_attrs_images *images = hl_images_attrs(node);
    const int64_t *value = hl_graph_shape(graph, node->in[first])->dim;
    const int64_t *location = hl_graph_shape(graph, node->in[first + 1])->dim;
    deformable_state s = {value[0],    value[1],    value[2],    value[3],
                          location[1], location[3], location[4], .begin = {0}};
    for (int64_t l = 0; l < s.L; l++) {
        s.height[l] = images->heights.at[l], s.width[l] = images->widths.at[l];
        if (l + 1 < s.L) s.begin[l + 1] = s.begin[l] + s.height[l] * s.width[l];
    }
    return s;
}

static hl_status query_deformable(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, 3, out_why_not)) return HL_ERROR_CONFIG;
    deformable_state s = make_state(graph, node, 0);
    out_req->rows = hl_cpu_max(s.N * s.Lq * s.M, 1);
    out_req->grain = hl_cpu_line_grain(4 * hl_cpu_min(hl_cpu_max(s.D, 1), 16));
    out_req->row_in = 6; /* locations and weights */
    out_req->row_out = 1;
    out_req->row_cost = (double)(s.L * s.P) * (4 + 0.2 * (double)s.D);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status query_deformable_grad(hl_device *device, const hl_graph *graph, hl_node_id id,
                                       hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    if (!hl_rows_is_f32(graph, node, 0, 4, out_why_not)) return HL_ERROR_CONFIG;
    deformable_state s = make_state(graph, node, 1);
    out_req->rows = hl_cpu_max(s.N * s.M * s.L, 1);
    out_req->grain = 1;
    out_req->row_cost = (double)(s.Lq * s.P) * (10 + 0.6 * (double)s.D);
    out_req->deterministic = true;
    return HL_OK;
}

static hl_status prepare_deformable(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    (void)device;
    const hl_node *node = &graph->nodes[id];
    deformable_state s = make_state(graph, node, node->op == HL_OP_DEFORMABLE_GRAD);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

/* A place of an image, in pixels: the one above and left of it, and the shares of those to its
 * right and below. False: it is beyond the edges, or no number. */
typedef struct place {
    int64_t x, y;
    float right, below;
} place;

HL_SIMD bool find_place(const deformable_state *s, int64_t l, const float *location, place *out)
{
    float w = (float)s->width[l], h = (float)s->height[l];
    float x = location[0] * w - 0.5f, y = location[1] * h - 0.5f;
    if (!(x > -1 && x < w && y > -1 && y < h)) return false;
    float x_low = floorf(x), y_low = floorf(y);
    *out = (place){(int64_t)x_low, (int64_t)y_low, x - x_low, y - y_low};
    return true;
}

/* Corner k of a place: its pixel; -1: beyond the edges. */
HL_SIMD int64_t find_pixel(const deformable_state *s, int64_t l, const place *at, int k)
{
    int64_t x = at->x + k % 2, y = at->y + k / 2;
    bool is_inside = x >= 0 && x < s->width[l] && y >= 0 && y < s->height[l];
    return is_inside ? y * s->width[l] + x : -1;
}

HL_SIMD float find_share_x(const place *at, int k)
{
    return k % 2 ? at->right : 1 - at->right;
}
HL_SIMD float find_share_y(const place *at, int k)
{
    return k / 2 ? at->below : 1 - at->below;
}

/* ---- forward --------------------------------------------------------------------------------- */

enum { TAPS = 64 };

typedef struct taps {
    int n;
    const float *at[TAPS];
    float weight[TAPS];
} taps;

/* y (D) = the taps' sum, behind what is there unless it is the first */
static void add_taps(const taps *t, float *y, int64_t D, bool is_first)
{
    int64_t i = 0;
    for (; i + 2 * HL_VL <= D; i += 2 * HL_VL) {
        hl_v a = is_first ? hl_v_zero() : hl_v_load(y + i);
        hl_v b = is_first ? hl_v_zero() : hl_v_load(y + i + HL_VL);
        for (int k = 0; k < t->n; k++) {
            hl_v weight = hl_v_set1(t->weight[k]);
            a = hl_v_fma(weight, hl_v_load(t->at[k] + i), a);
            b = hl_v_fma(weight, hl_v_load(t->at[k] + i + HL_VL), b);
        }
        hl_v_store(y + i, a);
        hl_v_store(y + i + HL_VL, b);
    }
    for (; i < D; i += HL_VL) {
        int64_t lanes = hl_cpu_min(D - i, HL_VL);
        hl_v a = is_first ? hl_v_zero() : hl_row_load(y + i, lanes);
        for (int k = 0; k < t->n; k++)
            a = hl_v_fma(hl_v_set1(t->weight[k]), hl_row_load(t->at[k] + i, lanes), a);
        hl_row_store(y + i, a, lanes);
    }
}

/* value (N,S,M,D) of a sample's head, locations and weights (L,P) of a query's -> y (D) */
static void run_query(const deformable_state *s, const float *value, const float *location,
                      const float *weight, float *y)
{
    taps t = {.n = 0};
    bool is_first = true;
    for (int64_t i = 0; i < s->L * s->P; i++) {
        int64_t l = i / s->P;
        place at;
        if (!find_place(s, l, location + 2 * i, &at)) continue;
        for (int k = 0; k < 4; k++) {
            int64_t pixel = find_pixel(s, l, &at, k);
            if (pixel < 0) continue;
            t.at[t.n] = value + (s->begin[l] + pixel) * s->M * s->D;
            t.weight[t.n++] = weight[i] * find_share_x(&at, k) * find_share_y(&at, k);
        }
        if (t.n <= TAPS - 4) continue;
        add_taps(&t, y, s->D, is_first);
        is_first = false, t.n = 0;
    }
    add_taps(&t, y, s->D, is_first);
}

static void run_deformable(const hl_kernel_state *state, void *const *args, int64_t begin,
                           int64_t end, const hl_launch *launch)
{
    (void)launch;
    const deformable_state *s = state->impl;
    const float *value = args[0], *location = args[1], *weight = args[2];
    float *y = args[3];
    int64_t places = s->L * s->P;
    end = hl_cpu_min(end, s->N * s->Lq * s->M);
    for (int64_t row = begin; row < end; row++) {
        int64_t m = row % s->M, sample = row / s->M / s->Lq;
        run_query(s, value + (sample * s->S * s->M + m) * s->D, location + 2 * row * places,
                  weight + row * places, y + row * s->D);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* What a place gives: to the pixels around it, its weight and its location (in pixels). */
static void run_place(const deformable_state *s, int64_t l, const place *at, float weight,
                      const float *dy, const float *value, float *dvalue, float out[3])
{
    hl_v by_weight = hl_v_zero(), by_x = hl_v_zero(), by_y = hl_v_zero();
    for (int k = 0; k < 4; k++) {
        int64_t pixel = find_pixel(s, l, at, k);
        if (pixel < 0) continue;
        const float *v = value + pixel * s->M * s->D;
        float *dv = dvalue + pixel * s->M * s->D;
        float share_x = find_share_x(at, k), share_y = find_share_y(at, k);
        hl_v share = hl_v_set1(share_x * share_y), scale = hl_v_set1(weight * share_x * share_y);
        hl_v slope_x = hl_v_set1(k % 2 ? share_y : -share_y);
        hl_v slope_y = hl_v_set1(k / 2 ? share_x : -share_x), sum = hl_v_zero();
        for (int64_t i = 0; i < s->D; i += HL_VL) {
            int64_t lanes = hl_cpu_min(s->D - i, HL_VL);
            hl_v d = hl_row_load(dy + i, lanes);
            sum = hl_v_fma(d, hl_row_load(v + i, lanes), sum);
            hl_row_store(dv + i, hl_v_fma(scale, d, hl_row_load(dv + i, lanes)), lanes);
        }
        by_weight = hl_v_fma(share, sum, by_weight);
        by_x = hl_v_fma(slope_x, sum, by_x);
        by_y = hl_v_fma(slope_y, sum, by_y);
    }
    out[0] = hl_v_sum(by_weight), out[1] = hl_v_sum(by_x), out[2] = hl_v_sum(by_y);
}

static void run_deformable_grad(const hl_kernel_state *state, void *const *args, int64_t begin,
                                int64_t end, const hl_launch *launch)
{
    (void)launch;
    const deformable_state *s = state->impl;
    const float *dy = args[0], *value = args[1], *location = args[2], *weight = args[3];
    float *dvalue = args[4], *dlocation = args[5], *dweight = args[6];
    end = hl_cpu_min(end, s->N * s->M * s->L);
    for (int64_t row = begin; row < end; row++) {
        int64_t l = row % s->L, m = row / s->L % s->M, sample = row / s->L / s->M;
        int64_t of_image = ((sample * s->S + s->begin[l]) * s->M + m) * s->D;
        for (int64_t pixel = 0; pixel < s->height[l] * s->width[l]; pixel++)
            memset(dvalue + of_image + pixel * s->M * s->D, 0, (size_t)s->D * sizeof(float));
        for (int64_t q = 0; q < s->Lq; q++) {
            int64_t head = (sample * s->Lq + q) * s->M + m;
            for (int64_t p = 0; p < s->P; p++) {
                int64_t i = (head * s->L + l) * s->P + p;
                float given[3] = {0, 0, 0};
                place at;
                if (find_place(s, l, location + 2 * i, &at))
                    run_place(s, l, &at, weight[i], dy + head * s->D, value + of_image,
                              dvalue + of_image, given);
                dweight[i] = given[0];
                dlocation[2 * i] = weight[i] * (float)s->width[l] * given[1];
                dlocation[2 * i + 1] = weight[i] * (float)s->height[l] * given[2];
            }
        }
    }
}

static const hl_kernel deformable = {.op = HL_OP_DEFORMABLE,
                                     .name = HL_CPU_NAME("deformable_attention"),
                                     .query = query_deformable,
                                     .prepare = prepare_deformable,
                                     .block = run_deformable};
static const hl_kernel deformable_grad = {.op = HL_OP_DEFORMABLE_GRAD,
                                          .name = HL_CPU_NAME("deformable_attention_grad"),
                                          .query = query_deformable_grad,
                                          .prepare = prepare_deformable,
                                          .block = run_deformable_grad};

const hl_kernel *const HL_ISA_NAME(hl_cpu_deformable_kernels)[] = {&deformable, &deformable_grad,
                                                                   NULL};
