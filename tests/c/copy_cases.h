/* Copies and indexed access, as cases for any device (cpu_case.h, tests/cuda/device_case.h): values
 * are small integers, so every result is exact in every dtype. */
#ifndef TESTS_C_COPY_CASES_H
#define TESTS_C_COPY_CASES_H

#include "tests/c/case.h"

static void case_check(op_case *c);

static const hl_dtype dtypes[] = {HL_DTYPE_F32, HL_DTYPE_I64, HL_DTYPE_U8, HL_DTYPE_BF16};
static const int64_t shapes[][4] = {{3, 4, 5, 6},   {1, 7, 1, 9}, {2, 33, 17, 4}, {40, 1, 1, 50},
                                    {1, 1, 65, 70}, {5, 0, 3, 2}, {2, 3, 8, 128}, {1, 1, 1, 300}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Small integers: every dtype holds them and their sums. */
static void fill_whole(op_case *c, int i, double high)
{
    case_fill(c, i, 0, high);
    int64_t n = hl_shape_numel(&c->in[i].shape);
    for (int64_t e = 0; e < n; e++) c->data[i][e] = floor(c->data[i][e]);
}

/* A case with in[0] of shape s, form picking the dtype. */
static op_case start_case(hl_op op, int rank, const int64_t *dim, int form)
{
    op_case c = {.op = op, .n_in = 1, .n_out = 1};
    c.in[0] = (hl_type){dtypes[form % 4], hl_shape_make(rank, dim)};
    fill_whole(&c, 0, 100);
    c.out[0] = c.in[0];
    return c;
}

static void test_permute(void)
{
    static const int orders[][4] = {{0, 1, 2, 3}, {1, 0, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3},
                                    {0, 3, 1, 2}, {2, 3, 0, 1}, {0, 1, 3, 2}, {1, 2, 3, 0}};
    for (int s = 0; s < N_SHAPES; s++) {
        for (int o = 0; o < 8; o++) {
            for (int form = 0; form < 4; form++) {
                op_case c = start_case(HL_OP_PERMUTE, 4, shapes[s], form);
                c.attrs.permute.dims.n = 4;
                for (int d = 0; d < 4; d++) {
                    c.attrs.permute.dims.at[d] = orders[o][d];
                    c.out[0].shape.dim[d] = shapes[s][orders[o][d]];
                }
                check_case("permute shape %d order %d form %d", s, o, form);
                case_check(&c);
            }
        }
    }
}

static void test_views(void)
{
    for (int form = 0; form < 4; form++) {
        op_case c = start_case(HL_OP_RESHAPE, 4, shapes[2], form);
        c.out[0].shape = hl_shape_1d(hl_shape_numel(&c.in[0].shape));
        check_case("reshape form %d", form);
        case_check(&c);
        c = start_case(HL_OP_EXPAND, 1, (int64_t[]){1}, form);
        c.out[0].shape = hl_shape_2d(30, 40);
        case_check(&c);
        c = start_case(HL_OP_EXPAND, 2, (int64_t[]){7, 1}, form);
        c.out[0].shape = hl_shape_make(3, (int64_t[]){5, 7, 20});
        case_check(&c);
        c = start_case(HL_OP_EXPAND, 3, (int64_t[]){5, 1, 20}, form);
        c.out[0].shape = hl_shape_make(3, (int64_t[]){5, 7, 20});
        case_check(&c);
        for (int mask = 1; mask < 16; mask++) {
            c = start_case(HL_OP_FLIP, 4, shapes[form], form);
            for (int d = 0; d < 4; d++) {
                if (mask >> d & 1) c.attrs.flip.axes.at[c.attrs.flip.axes.n++] = d;
            }
            check_case("flip mask %d", mask);
            case_check(&c);
        }
    }
}

static void test_slice(void)
{
    for (int s = 0; s < N_SHAPES; s++) {
        for (int axis = 0; axis < 4; axis++) {
            for (int form = 0; form < 12; form++) {
                int64_t n = shapes[s][axis], start = form % 3, step = 1 + form / 4;
                if (start > n) start = n;
                int64_t kept = n > start ? (n - start + step - 1) / step : 0;
                op_case c = start_case(HL_OP_SLICE, 4, shapes[s], form);
                c.attrs = (hl_attrs){.slice = {axis, start, INT64_MAX, step}};
                c.out[0].shape.dim[axis] = kept;
                check_case("slice shape %d axis %d form %d", s, axis, form);
                case_check(&c);
                int64_t dim[4];
                memcpy(dim, shapes[s], sizeof dim);
                dim[axis] = kept;
                c = start_case(HL_OP_SLICE_GRAD, 4, dim, form);
                c.attrs = (hl_attrs){.slice_grad = {axis, start, step, n}};
                c.out[0].shape.dim[axis] = n;
                check_case("slice_grad shape %d axis %d form %d", s, axis, form);
                case_check(&c);
            }
        }
    }
}

static void test_concat(void)
{
    for (int axis = 0; axis < 4; axis++) {
        for (int form = 0; form < 4; form++) {
            op_case c = start_case(HL_OP_CONCAT, 4, shapes[0], form);
            c.attrs.axis.axis = axis, c.n_in = 3;
            for (int i = 1; i < 3; i++) {
                c.in[i] = c.in[0];
                c.in[i].shape.dim[axis] = i == 1 ? 0 : 7;
                fill_whole(&c, i, 100);
            }
            c.out[0].shape.dim[axis] += 7;
            check_case("concat axis %d form %d", axis, form);
            case_check(&c);
        }
    }
}

/* What lies between the parts, and behind them, stays. */
static void test_write_parts(void)
{
    for (int64_t align = 1; align <= 16; align *= 4) {
        for (int form = 0; form < 4; form++) {
            op_case c = start_case(HL_OP_WRITE_PARTS, 1, (int64_t[]){130}, form);
            c.attrs.write_parts.align = align, c.n_in = 5, c.is_guarded = true;
            for (int i = 1; i < 5; i++) {
                c.in[i] = c.in[0];
                c.in[i].shape.dim[0] = (int64_t[]){29, 0, 64, 5}[i - 1];
                fill_whole(&c, i, 100);
            }
            check_case("write_parts align %d form %d", (int)align, form);
            case_check(&c);
        }
    }
}

static void test_split(void)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 64};
    for (int s = 0; s < N_SHAPES; s++) {
        for (int axis = 0; axis < 4; axis++) {
            for (int form = 0; form < 20; form++) {
                int64_t n = shapes[s][axis], size = sizes[form / 4];
                int64_t n_out = n ? (n + size - 1) / size : 1;
                if (n_out >= CASE_MAX) continue;
                op_case c = start_case(HL_OP_SPLIT, 4, shapes[s], form);
                c.attrs = (hl_attrs){.split = {axis, size}};
                c.n_out = (int)n_out;
                for (int j = 0; j < c.n_out; j++) {
                    int64_t rest = n - j * size;
                    c.out[j] = c.in[0];
                    c.out[j].shape.dim[axis] = rest < size ? rest : size;
                }
                check_case("split shape %d axis %d form %d", s, axis, form);
                case_check(&c);
            }
        }
    }
}

static void test_slice_add(void)
{
    static const hl_dtype floats[] = {HL_DTYPE_F32, HL_DTYPE_BF16, HL_DTYPE_F16};
    for (int s = 0; s < N_SHAPES; s++) {
        for (int axis = 0; axis < 4; axis++) {
            for (int form = 0; form < 27; form++) {
                int64_t n = shapes[s][axis], start = form % 3, step = 1 + form / 3 % 3;
                if (start > n) start = n;
                op_case c = start_case(HL_OP_SLICE_ADD, 4, shapes[s], 0);
                c.in[0].dtype = c.out[0].dtype = floats[form / 9];
                c.attrs = (hl_attrs){.slice_add = {axis, start, step}};
                c.in[1] = c.in[0];
                c.in[1].shape.dim[axis] = n > start ? (n - start + step - 1) / step : 0;
                c.n_in = 2;
                fill_whole(&c, 1, 100);
                check_case("slice_add shape %d axis %d form %d", s, axis, form);
                case_check(&c);
            }
        }
    }
}

static void test_pad(void)
{
    static const int64_t pads[][8] = {{0, 0, 0, 0, 0, 0, 2, 3},   {1, 2, 0, 0, 0, 0, 0, 0},
                                      {0, 0, 1, 1, 2, 0, 0, 2},   {0, 0, 0, 0, 2, 2, 2, 2},
                                      {0, 0, 0, 0, -1, 2, 1, -2}, {-1, -1, 0, 0, 0, 0, 0, 0}};
    for (int p = 0; p < 6; p++) {
        for (int mode = 0; mode < (p < 4 ? 4 : 1); mode++) {
            for (int form = 0; form < 4; form++) {
                for (int s = 0; s < 7; s += 6) {
                    op_case c = start_case(HL_OP_PAD, 4, shapes[s], form);
                    hl_attrs_pad *pad = &c.attrs.pad;
                    hl_shape padded = c.in[0].shape;
                    *pad = (hl_attrs_pad){{4, {0}}, {4, {0}}, 7, mode};
                    for (int d = 0; d < 4; d++) {
                        pad->before.at[d] = pads[p][2 * d], pad->after.at[d] = pads[p][2 * d + 1];
                        padded.dim[d] += pads[p][2 * d] + pads[p][2 * d + 1];
                    }
                    if (padded.dim[0] < 0 || (mode == 1 && s == 6 && p == 1)) {
                        free(c.data[0]);
                        continue;
                    }
                    c.out[0].shape = padded;
                    check_case("pad %d mode %d form %d", p, mode, form);
                    hl_attrs attrs = c.attrs;
                    hl_type plain = c.in[0];
                    case_check(&c);
                    if (form > 0) continue;
                    c = start_case(HL_OP_PAD_GRAD, 4, padded.dim, form);
                    c.attrs = attrs, c.out[0] = plain;
                    check_case("pad_grad %d mode %d", p, mode);
                    case_check(&c);
                }
            }
        }
    }
    for (int mode = 0; mode < 4; mode++) {
        op_case c = start_case(HL_OP_PAD, 1, (int64_t[]){20}, 0);
        c.attrs.pad = (hl_attrs_pad){{1, {5}}, {1, {3}}, 0, mode};
        c.out[0].shape = hl_shape_1d(28);
        check_case("pad 1-d mode %d", mode);
        case_check(&c);
    }
}

/* ---- indexed access ---- */

static void add_index(op_case *c, hl_shape shape, int64_t n, int form)
{
    static const hl_dtype index_dtypes[] = {HL_DTYPE_I64, HL_DTYPE_I32, HL_DTYPE_I16};
    int i = c->n_in++;
    c->in[i] = (hl_type){index_dtypes[form % 3], shape};
    case_fill(c, i, 0, (double)n);
    if (form == 5 && hl_shape_numel(&shape) > 0) c->data[i][0] = (double)n;
    if (form == 6 && hl_shape_numel(&shape) > 1) c->data[i][1] = -1;
}

static void check_faults(op_case *c, int form)
{
    bool faults = form == 5 || form == 6;
    int64_t n_index = hl_shape_numel(&c->in[1].shape);
    case_check(c);
    if (n_index > 1) CHECK_INT(c->control_after[0].error_code, faults);
    CHECK_INT(c->control_after[0].error_code, c->control_after[1].error_code);
}

static void test_rows_by_index(void)
{
    for (int axis = 0; axis < 3; axis++) {
        for (int form = 0; form < 8; form++) {
            int64_t dim[3] = {30, 20, 10};
            op_case c = start_case(HL_OP_INDEX_SELECT, 3, dim, form);
            c.attrs.axis.axis = axis;
            add_index(&c, hl_shape_2d(5, 13), dim[axis], form);
            hl_shape out = {0, {0}};
            for (int d = 0; d < 3; d++) {
                if (d == axis) out.dim[out.rank++] = 5;
                out.dim[out.rank++] = d == axis ? 13 : dim[d];
            }
            c.out[0].shape = out;
            check_case("index_select axis %d form %d", axis, form);
            check_faults(&c, form);
            static const hl_op writes[] = {HL_OP_INDEX_COPY, HL_OP_INDEX_ADD, HL_OP_INDEX_ASSIGN};
            for (int op = 0; op < 3; op++) {
                c = start_case(writes[op], 3, dim, form);
                c.is_guarded = writes[op] == HL_OP_INDEX_ASSIGN;
                c.attrs.axis.axis = axis;
                int64_t n = 1 + 9 * form;
                add_index(&c, hl_shape_1d(n), dim[axis], form);
                c.in[c.n_in] = c.in[0];
                c.in[c.n_in].shape.dim[axis] = n;
                fill_whole(&c, c.n_in++, 3);
                check_case("index write op %d axis %d form %d", op, axis, form);
                check_faults(&c, form);
            }
        }
    }
}

static void test_elements_by_index(void)
{
    for (int rank = 1; rank <= 3; rank++) {
        for (int axis = 0; axis < rank; axis++) {
            for (int form = 0; form < 16; form++) {
                int64_t dim[3] = {9, 8, 7}, index[3] = {9, 8, 7}, src[3] = {10, 9, 9};
                const int64_t *x_dim = dim + 3 - rank;
                index[3 - rank + axis] = 12;
                src[3 - rank + axis] = 12;
                /* The index may be smaller than its arrays along the other axes. */
                for (int d = 0; form >= 8 && d < rank; d++) {
                    if (d != axis) index[3 - rank + d] -= 3;
                }
                hl_shape index_shape = hl_shape_make(rank, index + 3 - rank);
                op_case c = start_case(HL_OP_GATHER, rank, x_dim, form);
                c.attrs.axis.axis = axis;
                add_index(&c, index_shape, x_dim[axis], form % 8);
                c.out[0].shape = index_shape;
                check_case("gather rank %d axis %d form %d", rank, axis, form);
                check_faults(&c, form % 8);
                for (int op = 0; op < 2; op++) {
                    c = start_case(op ? HL_OP_SCATTER_ADD : HL_OP_SCATTER, rank, x_dim, form);
                    c.attrs.axis.axis = axis;
                    add_index(&c, index_shape, x_dim[axis], form % 8);
                    c.in[2] = (hl_type){c.in[0].dtype, hl_shape_make(rank, src + 3 - rank)};
                    if (form & 1) c.in[2].shape = index_shape;
                    fill_whole(&c, 2, 3);
                    c.n_in = 3;
                    check_case("scatter op %d rank %d axis %d form %d", op, rank, axis, form);
                    check_faults(&c, form % 8);
                }
            }
        }
    }
}

static void test_batch_gather(void)
{
    static const int64_t widths[] = {1, 2, 3, 4, 64, 65, 1000};
    for (int from = 0; from < HL_DTYPE_COUNT; from++) {
        for (int w = 0; w < 7; w++) {
            for (int form = 0; form < 7; form++) {
                static const hl_dtype targets[] = {HL_DTYPE_F32, HL_DTYPE_I64, HL_DTYPE_BOOL};
                op_case c = {.op = HL_OP_BATCH_GATHER, .n_in = 1, .n_out = 1};
                c.in[0] = (hl_type){(hl_dtype)from, hl_shape_2d(97, widths[w])};
                fill_whole(&c, 0, 100);
                add_index(&c, hl_shape_1d(61), 97, form);
                hl_dtype to = form == 1 ? (hl_dtype)from : targets[form % 3];
                c.out[0] = (hl_type){to, hl_shape_2d(61, widths[w])};
                check_case("batch_gather dtype %d width %d form %d", from, w, form);
                check_faults(&c, form);
            }
        }
    }
}

static void test_copies(void)
{
    test_permute();
    test_views();
    test_slice();
    test_concat();
    test_write_parts();
    test_split();
    test_pad();
}

static void test_indexed(void)
{
    test_rows_by_index();
    test_elements_by_index();
    test_slice_add();
    test_batch_gather();
}

#endif
