/* Cases of attention to sampled places, for any device: one image and many, images smaller and
 * larger than a GPU's tile, widths that are no vectors, places on pixels, between them, at the
 * edges and beyond; more places than a list of taps has room for; no queries. */
#ifndef TESTS_C_DEFORMABLE_CASES_H
#define TESTS_C_DEFORMABLE_CASES_H

#include <math.h>

#include "tests/c/case.h"

static void case_check(op_case *c);

typedef struct sampling {
    int64_t N, M, D, Lq, L, P;
    int64_t height[8], width[8];
} sampling;

static const sampling samplings[] = {
    {1, 1, 1, 1, 1, 1, {1}, {1}},
    {2, 3, 5, 7, 2, 2, {3, 2}, {4, 1}},
    {1, 2, 32, 9, 4, 4, {8, 4, 2, 1}, {8, 4, 2, 1}},
    {2, 1, 40, 5, 3, 1, {9, 1, 17}, {16, 7, 8}},
    {1, 1, 65, 3, 8, 3, {1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}},
    {1, 2, 16, 300, 1, 2, {10}, {20}},
    {1, 1, 8, 4, 2, 20, {16, 3}, {16, 5}},
    {2, 2, 4, 0, 1, 1, {2}, {3}},
    {0, 2, 4, 3, 1, 1, {2}, {3}},
};
enum { N_SAMPLINGS = sizeof samplings / sizeof *samplings };

/* Places: drawn, on pixels (where one share of each pair is 0), and no numbers. */
typedef enum placing { PLACES_DRAWN, PLACES_ON_PIXELS, PLACES_ODD, PLACINGS } placing;

static void fill_places(op_case *c, int i, const sampling *s, placing how)
{
    case_fill(c, i, -0.3, 1.3);
    for (int64_t e = 0; how != PLACES_DRAWN && e < hl_shape_numel(&c->in[i].shape); e++) {
        int64_t l = e / 2 / s->P % s->L;
        double side = (double)(e % 2 ? s->height[l] : s->width[l]);
        double pixel = floor(c->data[i][e] * side);
        if (how == PLACES_ON_PIXELS) c->data[i][e] = (pixel + 0.5) / side;
        if (how == PLACES_ODD && e % 5 == 0) c->data[i][e] = e % 3 ? NAN : e % 2 ? 1e30 : -INFINITY;
    }
}

/* Value, locations and weights from operand `first` on. */
static void add_samplings(op_case *c, int first, const sampling *s, placing how)
{
    int64_t S = 0;
    for (int l = 0; l < s->L; l++) S += s->height[l] * s->width[l];
    c->attrs.images.heights = hl_ints_make(s->height, (int32_t)s->L);
    c->attrs.images.widths = hl_ints_make(s->width, (int32_t)s->L);
    c->in[first] = (hl_type){HL_DTYPE_F32, {4, {s->N, S, s->M, s->D}}};
    c->in[first + 1] = (hl_type){HL_DTYPE_F32, {6, {s->N, s->Lq, s->M, s->L, s->P, 2}}};
    c->in[first + 2] = (hl_type){HL_DTYPE_F32, {5, {s->N, s->Lq, s->M, s->L, s->P}}};
    for (int i = 0; i < first + 3; i++) case_fill(c, i, -1, 1);
    fill_places(c, first + 1, s, how);
    c->tolerance = 2e-4;
}

static void test_deformable(void)
{
    for (int i = 0; i < N_SAMPLINGS; i++)
        for (int how = 0; how < PLACINGS; how++) {
            const sampling *s = &samplings[i];
            hl_type result = {HL_DTYPE_F32, {4, {s->N, s->Lq, s->M, s->D}}};
            op_case forward = {.op = HL_OP_DEFORMABLE, .n_in = 3, .n_out = 1};
            op_case gradient = {.op = HL_OP_DEFORMABLE_GRAD, .n_in = 4, .n_out = 3};
            check_case("sampling %d, places %d", i, how);
            /* On pixels the location's slope has two sides, of which rounding chooses. */
            add_samplings(&forward, 0, s, (placing)how);
            forward.out[0] = result;
            case_check(&forward);
            if (how == PLACES_ON_PIXELS) continue;
            gradient.in[0] = result;
            add_samplings(&gradient, 1, s, (placing)how);
            for (int j = 0; j < 3; j++) gradient.out[j] = gradient.in[1 + j];
            case_check(&gradient);
        }
}

#endif
