/* The training step: one graph of three segments around a forward pass.
 *
 * begin  the control block moves to the next attempted step; gradient sums are cleared
 * micro  forward, backward; with accumulation, gradients and denominators are added up
 * apply  divide, norm, clip, the control block's decision, optimizer, EMA
 *
 * Each loss is a sum and a denominator, so that class weights, ignored targets and masks divide
 * once, by the window's total. Without accumulation the division happens at the seed of the
 * backward pass. With it, losses that share a denominator share a gradient sum and are divided in
 * apply; a loss without a denominator is divided by its rows, of which the window's total is the
 * number. So a second gradient buffer is needed only when losses with different data-dependent
 * denominators are accumulated. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/build.h"
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { HL_OPTIMIZER_INS = 9 };

typedef struct step_group {
    hl_id denominator; /* of the micro-batch: a value; HL_NONE: rows */
    hl_id sum;         /* weighted sum of the group's losses */
    hl_id grad;        /* flat gradient of the window, in apply */
    hl_id total;       /* denominator of the window, in apply */
} step_group;

typedef struct step_state {
    hl_graph *graph;
    const hl_step_spec *spec;
    hl_dtype dtype;
    int64_t n_flat, align; /* elements; each parameter begins at a multiple of `align` */
    step_group *groups;
    int64_t n_groups;
    hl_id *grads; /* by parameter; the place before them is the flat state's */
    bool *has_grad;
    hl_id begun;   /* the control block after CONTROL_BEGIN */
    hl_id control; /* as the current segment's guards must see it */
    hl_id scale;   /* of the loss; HL_NONE: 1 */
} step_state;

/* ---- small builders -------------------------------------------------------------------------- */

static hl_status add2(step_state *s, hl_op op, hl_id a, hl_id b, hl_id *out)
{
    return hl_graph_add(s->graph, op, (hl_id[]){a, b}, 2, NULL, out);
}

static hl_status number(step_state *s, double value, hl_id *out)
{
    return hl_graph_number(s->graph, s->dtype, value, out);
}

static hl_status scale_by(step_state *s, hl_id value, double factor, hl_id *out)
{
    hl_id f;
    *out = value;
    if (factor == 1.0) return HL_OK;
    HL_TRY(number(s, factor, &f));
    return add2(s, HL_OP_MUL, value, f, out);
}

/* sum / denominator, with 0 / 0 = 0: a micro-batch whose targets are all ignored has no
 * gradient. */
static hl_status divide_safely(step_state *s, hl_id sum, hl_id denominator, hl_id *out)
{
    hl_id zero, one, is_zero, safe;
    HL_TRY(number(s, 0.0, &zero));
    HL_TRY(number(s, 1.0, &one));
    HL_TRY(add2(s, HL_OP_EQ, denominator, zero, &is_zero));
    HL_TRY(
        hl_graph_add(s->graph, HL_OP_WHERE, (hl_id[]){is_zero, one, denominator}, 3, NULL, &safe));
    return add2(s, HL_OP_DIV, sum, safe, out);
}

/* The first n elements of a store; frozen parameters lie behind the trainable ones. */
static hl_status leaf(step_state *s, const char *store, int64_t n, hl_shape shape,
                      hl_value_kind kind, hl_id *out)
{
    int32_t index = hl_graph_store_find(s->graph, store);
    if (index == HL_NONE || s->graph->stores[index].n < n)
        HL_TRY(hl_graph_store(s->graph, store, s->dtype, n, &index));
    return hl_graph_leaf(s->graph, kind, (hl_type){s->dtype, shape}, index, 0, store, out);
}

static hl_status guarded(step_state *s, hl_op op, hl_id state, hl_id value, const hl_attrs *attrs)
{
    hl_id out;
    HL_TRY(hl_graph_add(s->graph, op, (hl_id[]){state, value, s->control}, 3, attrs, &out));
    return hl_graph_commit(s->graph, state, out);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static hl_status check_terms(const step_state *s)
{
    for (int64_t t = 0; t < s->spec->n_terms; t++) {
        const hl_step_term *term = &s->spec->terms[t];
        const hl_type *type = &hl_graph_value(s->graph, term->sum)->type;
        char text[HL_SHAPE_TEXT];
        if (type->shape.rank)
            return hl_status_set(HL_ERROR_TRACE, "loss: must be a scalar, got shape %s",
                                 hl_shape_format(&type->shape, text));
        if (!hl_dtype_is_float(type->dtype))
            return hl_status_set(HL_ERROR_TRACE, "loss: must be floating, got %s",
                                 hl_dtype_name(type->dtype));
    }
    return HL_OK;
}

/* The micro-batch's loss as it is reported: the weighted sum of means. */
static hl_status build_loss(step_state *s, hl_id *out_loss)
{
    *out_loss = HL_NONE;
    for (int64_t t = 0; t < s->spec->n_terms; t++) {
        const hl_step_term *term = &s->spec->terms[t];
        hl_id mean = term->sum;
        if (term->denominator != HL_NONE)
            HL_TRY(divide_safely(s, term->sum, term->denominator, &mean));
        HL_TRY(scale_by(s, mean, term->weight, &mean));
        if (*out_loss == HL_NONE)
            *out_loss = mean;
        else
            HL_TRY(add2(s, HL_OP_ADD, *out_loss, mean, out_loss));
    }
    return HL_OK;
}

/* Losses by denominator; a fixed one is a multiple of the rows; a mean over rows times rows is a
 * sum again. */
static hl_status build_groups(step_state *s)
{
    for (int64_t t = 0; t < s->spec->n_terms; t++) {
        const hl_step_term *term = &s->spec->terms[t];
        hl_id sum;
        double weight = term->weight, fixed;
        hl_id denominator = term->denominator;
        if (denominator == HL_NONE) {
            weight *= (double)s->spec->rows;
        } else if (hl_rewrite_number(s->graph, denominator, &fixed) && fixed > 0) {
            weight *= (double)s->spec->rows / fixed;
            denominator = HL_NONE;
        }
        HL_TRY(scale_by(s, term->sum, weight, &sum));
        int64_t g = 0;
        while (g < s->n_groups && s->groups[g].denominator != denominator) g++;
        if (g == s->n_groups) {
            s->groups[s->n_groups++] = (step_group){.denominator = denominator, .sum = sum};
        } else {
            HL_TRY(add2(s, HL_OP_ADD, s->groups[g].sum, sum, &s->groups[g].sum));
        }
    }
    return HL_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* All gradients of a micro-batch in a flat state, as the parameters lie in their store; a parameter
 * without one gets zeros. Nothing writes what lies between two parameters, so it is the zeros with
 * which the state began, and no step has to clear it. */
static hl_status build_flat_gradient(step_state *s, hl_id loss, const char *name, hl_id *out_flat)
{
    const hl_step_spec *spec = s->spec;
    hl_id *in = s->grads - 1; /* the state stands before them */
    HL_TRY(leaf(s, name, s->n_flat, hl_shape_1d(s->n_flat), HL_VALUE_STATE, &in[0]));
    HL_TRY(hl_pass_autodiff(s->graph, loss, s->scale, spec->params, spec->n_params, s->grads));
    for (int64_t p = 0; p < spec->n_params; p++) {
        hl_shape elements = hl_shape_1d(hl_shape_numel(hl_graph_shape(s->graph, spec->params[p])));
        if (s->grads[p] == HL_NONE) {
            hl_type flat = {s->dtype, elements};
            HL_TRY(hl_build_full(s->graph, &flat, 0.0, &s->grads[p]));
            continue;
        }
        s->has_grad[p] = true;
        HL_TRY(hl_build_reshape(s->graph, s->grads[p], &elements, &s->grads[p]));
    }
    hl_attrs attrs = {.write_parts = {s->align}};
    HL_TRY(hl_graph_add(s->graph, HL_OP_WRITE_PARTS, in, (int32_t)spec->n_params + 1, &attrs,
                        out_flat));
    return hl_graph_commit(s->graph, in[0], *out_flat);
}

static hl_status clear_state(step_state *s, hl_id state)
{
    hl_id zeros;
    hl_type type = {s->dtype, *hl_graph_shape(s->graph, state)};
    HL_TRY(hl_build_full(s->graph, &type, 0.0, &zeros));
    return guarded(s, HL_OP_ASSIGN, state, zeros, NULL);
}

/* One group with accumulation: cleared in begin, added up in micro, read in apply. */
static hl_status build_accumulation(step_state *s, int64_t g)
{
    step_group *group = &s->groups[g];
    char name[32];
    hl_id flat, denominator = group->denominator, total, grad, control = s->control;
    snprintf(name, sizeof name, "grad.%d", (int)g);
    HL_TRY(leaf(s, name, s->n_flat, hl_shape_1d(s->n_flat), HL_VALUE_STATE, &grad));
    snprintf(name, sizeof name, "denominator.%d", (int)g);
    HL_TRY(leaf(s, name, 1, hl_shape_scalar(), HL_VALUE_STATE, &total));
    snprintf(name, sizeof name, "micro_grad.%d", (int)g);
    HL_TRY(build_flat_gradient(s, group->sum, name, &flat));
    if (denominator == HL_NONE) HL_TRY(number(s, (double)s->spec->rows, &denominator));
    s->graph->segment = HL_SEGMENT_BEGIN;
    s->control = s->begun;
    HL_TRY(clear_state(s, grad));
    HL_TRY(clear_state(s, total));
    s->graph->segment = HL_SEGMENT_MICRO;
    s->control = control;
    HL_TRY(guarded(s, HL_OP_ACCUMULATE, grad, flat, NULL));
    HL_TRY(guarded(s, HL_OP_ACCUMULATE, total, denominator, NULL));
    group->grad = grad;
    group->total = total;
    return HL_OK;
}

/* The window's gradient and the factor it must still be multiplied by. */
static hl_status build_gradient(step_state *s, hl_id loss, hl_id *out_grad, hl_id *out_factor)
{
    hl_id one;
    if (!s->spec->accumulate) {
        HL_TRY(build_flat_gradient(s, loss, "micro_grad.0", out_grad));
        s->graph->segment = HL_SEGMENT_APPLY;
        return number(s, 1.0, out_factor);
    }
    HL_TRY(build_groups(s));
    for (int64_t g = 0; g < s->n_groups; g++) HL_TRY(build_accumulation(s, g));
    s->graph->segment = HL_SEGMENT_APPLY;
    HL_TRY(number(s, 1.0, &one));
    if (s->n_groups == 1) {
        *out_grad = s->groups[0].grad;
        return divide_safely(s, one, s->groups[0].total, out_factor);
    }
    *out_grad = HL_NONE;
    for (int64_t g = 0; g < s->n_groups; g++) {
        hl_id part;
        HL_TRY(divide_safely(s, one, s->groups[g].total, &part));
        HL_TRY(add2(s, HL_OP_MUL, s->groups[g].grad, part, &part));
        if (*out_grad == HL_NONE)
            *out_grad = part;
        else
            HL_TRY(add2(s, HL_OP_ADD, *out_grad, part, out_grad));
    }
    *out_factor = one;
    return HL_OK;
}

/* ---- apply ----------------------------------------------------------------------------------- */

/* The squared norm for the control block's decision; *factor is unscaled and clips. */
static hl_status build_norm(step_state *s, hl_id grad, hl_id *factor, hl_id *out_square)
{
    hl_id in[3] = {grad, *factor, s->scale}, out;
    hl_attrs attrs = {.gradient_norm = {s->spec->clip_norm}};
    HL_TRY(
        hl_graph_add(s->graph, HL_OP_GRADIENT_NORM, in, s->scale == HL_NONE ? 2 : 3, &attrs, &out));
    *out_square = out;
    *factor = out + 1;
    return HL_OK;
}

static hl_status build_value_clip(step_state *s, hl_id *grad, hl_id *factor)
{
    hl_id low, high;
    HL_TRY(number(s, -s->spec->clip_value, &low));
    HL_TRY(number(s, s->spec->clip_value, &high));
    HL_TRY(add2(s, HL_OP_MUL, *grad, *factor, grad));
    HL_TRY(add2(s, HL_OP_MAXIMUM, *grad, low, grad));
    HL_TRY(add2(s, HL_OP_MINIMUM, *grad, high, grad));
    return number(s, 1.0, factor);
}

static bool needs_state(const hl_step_spec *spec, int32_t index)
{
    const hl_attrs *a = &spec->attrs;
    if (spec->optimizer == HL_OP_SGD) return a->sgd.momentum != 0.0;
    if (spec->optimizer != HL_OP_RMSPROP || index == 0) return true;
    return index == 1 ? a->rmsprop.momentum != 0.0 : a->rmsprop.centered;
}

static hl_status build_optimizer(step_state *s, hl_id grad, hl_id factor)
{
    const hl_step_spec *spec = s->spec;
    int32_t n_state = hl_op_get(spec->optimizer)->n_out - 1, n_in = 0;
    hl_id in[HL_OPTIMIZER_INS], out, lr;
    hl_type table = {HL_DTYPE_F64, hl_shape_2d(spec->n_segments, 5)};
    HL_TRY(leaf(s, "param", s->n_flat, hl_shape_1d(s->n_flat), HL_VALUE_PARAM, &in[n_in++]));
    for (int32_t i = 0; i < n_state; i++) {
        char name[32];
        int64_t n = needs_state(spec, i) ? s->n_flat : 0;
        snprintf(name, sizeof name, "optimizer.%d", (int)i);
        HL_TRY(leaf(s, name, n, hl_shape_1d(n), HL_VALUE_STATE, &in[n_in++]));
    }
    in[n_in++] = grad;
    HL_TRY(hl_graph_const(s->graph, table, spec->segments, &in[n_in++]));
    in[n_in++] = factor;
    HL_TRY(hl_graph_scalar(s->graph, "lr", &lr));
    in[n_in++] = lr;
    in[n_in++] = s->control;
    HL_TRY(hl_graph_add(s->graph, spec->optimizer, in, n_in, &spec->attrs, &out));
    for (int32_t i = 0; i <= n_state; i++) HL_TRY(hl_graph_commit(s->graph, in[i], out + i));
    if (!spec->ema) return HL_OK;
    hl_id average;
    hl_attrs attrs = {.ema = {.decay = spec->ema, .ramp = spec->ema_ramp}};
    HL_TRY(leaf(s, "ema", s->n_flat, hl_shape_1d(s->n_flat), HL_VALUE_STATE, &average));
    return guarded(s, HL_OP_EMA, average, out, &attrs);
}

static hl_status build_apply(step_state *s, hl_id grad, hl_id factor)
{
    hl_id square, decided, control;
    HL_TRY(build_norm(s, grad, &factor, &square));
    if (s->spec->clip_value > 0) HL_TRY(build_value_clip(s, &grad, &factor));
    HL_TRY(hl_graph_control(s->graph, &control));
    hl_attrs betas = {0};
    if (s->spec->optimizer == HL_OP_ADAM)
        betas.betas = (hl_attrs_betas){s->spec->attrs.adam.beta1, s->spec->attrs.adam.beta2};
    HL_TRY(hl_graph_add(s->graph, HL_OP_CONTROL_APPLY, (hl_id[]){control, square}, 2, &betas,
                        &decided));
    HL_TRY(hl_graph_commit(s->graph, control, decided));
    s->control = decided;
    return build_optimizer(s, grad, factor);
}

/* ---- control --------------------------------------------------------------------------------- */

static hl_status build_begin(step_state *s)
{
    hl_id control, tables, lr;
    int32_t store;
    hl_type type = {HL_DTYPE_F64, hl_shape_2d(s->spec->n_table_rows, s->spec->n_table_cols)};
    hl_attrs attrs = {.dtype = {s->dtype}};
    HL_TRY(hl_graph_scalar(s->graph, "lr", &lr));
    s->graph->segment = HL_SEGMENT_BEGIN;
    HL_TRY(hl_graph_control(s->graph, &control));
    HL_TRY(hl_graph_store(s->graph, "table", HL_DTYPE_F64,
                          s->spec->n_table_rows * s->spec->n_table_cols, &store));
    HL_TRY(hl_graph_leaf(s->graph, HL_VALUE_STATE, type, store, 0, "table", &tables));
    HL_TRY(hl_graph_add(s->graph, HL_OP_CONTROL_BEGIN, (hl_id[]){control, tables}, 2, &attrs,
                        &s->begun));
    HL_TRY(hl_graph_commit(s->graph, control, s->begun));
    s->graph->segment = HL_SEGMENT_MICRO;
    return HL_OK;
}

static hl_status build_micro_end(step_state *s, hl_id loss)
{
    hl_id control, done;
    hl_attrs attrs = {.rows = {s->spec->rows}};
    HL_TRY(hl_graph_control(s->graph, &control));
    HL_TRY(hl_graph_add(s->graph, HL_OP_CONTROL_MICRO, (hl_id[]){control, loss}, 2, &attrs, &done));
    HL_TRY(hl_graph_commit(s->graph, control, done));
    s->control = done;
    return HL_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

static hl_status check_params(step_state *s)
{
    for (int64_t p = 0; p < s->spec->n_params; p++) {
        const hl_value *value = hl_graph_value(s->graph, s->spec->params[p]);
        s->n_flat = hl_round_up(s->n_flat, s->align);
        if (value->kind != HL_VALUE_PARAM || value->offset != s->n_flat ||
            value->type.dtype != s->dtype)
            return hl_status_set(
                HL_ERROR_CONFIG,
                "training step: parameter %d must lie at element %lld of the store", (int)p,
                (long long)s->n_flat);
        s->n_flat += hl_shape_numel(&value->type.shape);
    }
    if (!s->n_flat)
        return hl_status_set(HL_ERROR_CONFIG,
                             "training step: the model must have a trainable parameter, got none");
    return HL_OK;
}

/* The losses are outputs meanwhile, so that what they need stays. Not where the loss is scaled,
 * which is for products in float16: a product of two matrices, or its gradient, which is a sum over
 * all rows, may be beyond float16's range where nothing that it stands for is. */
static hl_status reassociate(step_state *s)
{
    int64_t n_outputs = s->graph->n_outputs;
    hl_status status;
    if (s->spec->scales_loss) return HL_OK;
    for (int64_t t = 0; t < s->spec->n_terms; t++) {
        const hl_step_term *term = &s->spec->terms[t];
        HL_GOTO(hl_graph_output(s->graph, term->sum));
        if (term->denominator != HL_NONE) HL_GOTO(hl_graph_output(s->graph, term->denominator));
    }
    HL_GOTO(hl_pass_reassociate(s->graph, s->spec->params, s->spec->n_params));
cleanup:
    s->graph->n_outputs = n_outputs;
    return status;
}

static hl_status build_step(step_state *s, hl_id *out_loss)
{
    hl_id grad, factor;
    HL_TRY(check_terms(s));
    HL_TRY(check_params(s));
    HL_TRY(reassociate(s));
    HL_TRY(build_begin(s));
    if (s->spec->scales_loss) HL_TRY(hl_graph_loss_scale(s->graph, &s->scale));
    HL_TRY(build_loss(s, out_loss));
    HL_TRY(build_micro_end(s, *out_loss));
    HL_TRY(build_gradient(s, *out_loss, &grad, &factor));
    HL_TRY(build_apply(s, grad, factor));
    s->graph->segment = HL_SEGMENT_MICRO;
    return HL_OK;
}

hl_status hl_pass_training_step(hl_graph *graph, const hl_step_spec *spec, hl_id *out_loss,
                                bool *out_has_grad)
{
    step_state s = {.graph = graph, .spec = spec, .has_grad = out_has_grad, .scale = HL_NONE};
    void *memory = NULL;
    *out_loss = HL_NONE;
    if (!spec->n_terms)
        return hl_status_set(HL_ERROR_CONFIG, "training step: a loss is needed, got none");
    if (!spec->n_params)
        return hl_status_set(HL_ERROR_CONFIG,
                             "training step: the model must have a trainable parameter, got none");
    s.dtype = hl_graph_dtype(graph, spec->params[0]);
    hl_status status = HL_OK;
    s.align = HL_ALIGN / (int64_t)hl_dtype_bytes(s.dtype);
    HL_GOTO(hl_alloc_zero((size_t)spec->n_terms * sizeof(step_group) +
                              ((size_t)spec->n_params + 1) * sizeof(hl_id),
                          &memory));
    s.groups = memory;
    s.grads = (hl_id *)(s.groups + spec->n_terms) + 1;
    memset(out_has_grad, 0, (size_t)spec->n_params);
    graph->scope = NULL;
    graph->checkpoint = 0;
    HL_GOTO(build_step(&s, out_loss));
cleanup:
    hl_free(memory);
    return status;
}
