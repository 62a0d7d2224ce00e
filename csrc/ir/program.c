/* Pointwise programs: the table of micro-ops, programs of single nodes, and the check of any. */
#include "ir/program.h"

#include <string.h>

#include "ir/op.h"

typedef struct pw_row {
    const char *micro_op, *op_name;
    uint8_t n_operands, result, cost;
} pw_row;

static const pw_row table[HL_PW_COUNT] = {
    [HL_PW_LOAD] = {.micro_op = "LOAD", .op_name = "load"},
    [HL_PW_NUMBER] = {.micro_op = "NUMBER", .op_name = "number"},
#define HL_PW_DRAW(id, text, ...) [HL_PW_##id] = {.micro_op = #id, .op_name = text},
#define HL_PW_CAST(id, text, ...) [HL_PW_##id] = {#id, text, 1, 0, HL_PW_COST_CHEAP},
#define HL_PW(id, text, n_operands, result, flags, vjp, cost, ...)                                 \
    [HL_PW_##id] = {#id, text, n_operands, HL_PW_RESULT_##result, HL_PW_COST_##cost},
#include "ir/pointwise.def"
};

int hl_pw_operands(hl_pw_op op)
{
    return table[op].n_operands;
}

const char *hl_pw_id(hl_pw_op op)
{
    return table[op].micro_op;
}

const char *hl_pw_name(hl_pw_op op)
{
    return table[op].op_name;
}

hl_pw_cost hl_pw_cost_of(hl_pw_op op)
{
    return (hl_pw_cost)table[op].cost;
}

hl_pw_result hl_pw_result_of(hl_pw_op op)
{
    return (hl_pw_result)table[op].result;
}

bool hl_pw_is_real(const hl_pw_instr *instr)
{
    if (instr->op == HL_PW_NUMBER) /* what is no integer that a double holds exactly */
        return !(instr->number >= -0x1p53 && instr->number <= 0x1p53) ||
               instr->number != (double)(int64_t)instr->number;
    if (instr->op == HL_PW_CAST) return hl_dtype_is_float((hl_dtype)instr->number);
    return hl_pw_is_random(instr->op) || table[instr->op].result == HL_PW_RESULT_FLOAT;
}

hl_pw_op hl_pw_of_op(hl_op op)
{
    switch (op) {
#define HL_PW(id, ...)                                                                             \
    case HL_OP_##id: return HL_PW_##id;
#define HL_PW_CAST(id, ...) HL_PW(id)
#define HL_PW_DRAW(id, ...) HL_PW(id)
#include "ir/pointwise.def"
    default: return HL_PW_COUNT;
    }
}

hl_pw_instr hl_pw_instr_make(const hl_node *node)
{
    hl_pw_instr instr = {.op = (uint8_t)hl_pw_of_op(node->op)};
    if (node->op == HL_OP_CAST) {
        instr.number = (double)hl_dtype_attrs(node)->dtype;
    } else if (node->op == HL_OP_DROPOUT_MASK) {
        const hl_attrs_dropout_mask *attrs = hl_dropout_mask_attrs(node);
        instr.number = attrs->p;
        instr.key = hl_rng_key_make((uint64_t)attrs->seed, attrs->stream);
    } else if (node->op == HL_OP_UNIFORM) {
        const hl_attrs_uniform *attrs = hl_uniform_attrs(node);
        instr.key = hl_rng_key_make((uint64_t)attrs->seed, attrs->stream);
    }
    return instr;
}

/* ---- groups of dims ---- */

static bool is_summed(const hl_ints *axes, int32_t dim)
{
    for (int32_t i = 0; i < axes->n; i++)
        if (axes->at[i] == dim) return true;
    return false;
}

bool hl_program_splits_add(const hl_shape *shape, const hl_ints *axes, int32_t *splits,
                           int32_t *n_splits)
{
    int32_t joined[HL_MAX_RANK], n = 0, next = 0, last = HL_NONE;
    for (int32_t d = 0; d < shape->rank; d++) {
        bool known = next < *n_splits && splits[next] == d;
        bool meets =
            shape->dim[d] != 1 && last != HL_NONE && is_summed(axes, d) != is_summed(axes, last);
        next += known;
        if (known || meets) joined[n++] = d;
        if (shape->dim[d] != 1) last = d;
    }
    if (n > HL_PROGRAM_SPLITS) return false;
    for (int32_t i = 0; i < n; i++) splits[i] = joined[i];
    *n_splits = n;
    return true;
}

void hl_program_splits_set(hl_program *program, const int32_t *splits, int32_t n_splits)
{
    program->split[0] = n_splits == 2 ? splits[0] : 0;
    program->split[1] = n_splits > 0 ? splits[n_splits - 1] : program->shape.rank;
}

hl_pw_sums hl_program_sums(const hl_program *program, const hl_ints *axes)
{
    const hl_shape *shape = &program->shape;
    int sums = HL_PW_FULL, is_kept = HL_PW_FULL;
    for (int32_t d = 0; d < shape->rank; d++) {
        int group = d < program->split[0]   ? HL_PW_SUM_OUTER
                    : d < program->split[1] ? HL_PW_SUM_MIDDLE
                                            : HL_PW_SUM_INNER;
        if (shape->dim[d] == 1) continue;
        if (is_summed(axes, d))
            sums |= group;
        else
            is_kept |= group;
    }
    /* A group without dims of its own goes with the middle one, or with all. */
    if (!is_kept) return HL_PW_SUM_ALL;
    if (sums & HL_PW_SUM_MIDDLE && !(is_kept & HL_PW_SUM_OUTER)) sums |= HL_PW_SUM_OUTER;
    return (hl_pw_sums)sums;
}

hl_program_groups hl_program_groups_make(const hl_program *program)
{
    const hl_shape *shape = &program->shape;
    const int32_t *split = program->split;
    hl_program_groups groups = {.outer = hl_shape_span(shape, 0, split[0]),
                                .middle = hl_shape_span(shape, split[0], split[1]),
                                .inner = hl_shape_span(shape, split[1], shape->rank),
                                .outer_dims = split[0],
                                .row_dims = split[1]};
    bool is_two = groups.outer == 1 || groups.middle == 1 || groups.inner == 1;
    int rows = HL_PW_SUM_MIDDLE, cols = HL_PW_SUM_INNER;
    if (groups.outer != 1 && groups.middle == 1) {
        groups.middle = groups.outer;
        rows = HL_PW_SUM_OUTER;
    } else if (groups.outer != 1 && groups.inner == 1) {
        groups.inner = groups.middle, groups.middle = groups.outer;
        groups.row_dims = groups.outer_dims;
        rows = HL_PW_SUM_OUTER, cols = HL_PW_SUM_MIDDLE;
    }
    if (is_two) groups.outer = 1, groups.outer_dims = 0;
    for (int32_t j = 0; j < program->n_out; j++) {
        int sums = program->out[j].sums;
        if (is_two) sums = (sums & rows ? HL_PW_SUM_ROWS : 0) | (sums & cols ? HL_PW_SUM_COLS : 0);
        groups.sums[j] = (uint8_t)sums;
    }
    return groups;
}

/* ---- the program of one node ---- */

static uint8_t append_instr(hl_program *program, hl_pw_instr instr)
{
    instr.dst = (uint8_t)program->n_regs++;
    program->code[program->n_code++] = instr;
    return instr.dst;
}

/* The register of operand k: a number, a load, or the load of an equal operand. */
static uint8_t load_operand(const hl_graph *graph, const hl_node *node, int32_t k,
                            hl_program *program, const uint8_t *loaded)
{
    const double exact = 9007199254740992.0; /* 2^53: beyond it an integer is no double */
    double number;
    for (int32_t i = 0; i < k; i++)
        if (node->in[i] == node->in[k]) return loaded[i];
    if (hl_graph_number_read(graph, node->in[k], &number) &&
        (hl_dtype_is_float(hl_graph_dtype(graph, node->in[k])) ||
         (number > -exact && number < exact)))
        return append_instr(program, (hl_pw_instr){.op = HL_PW_NUMBER, .number = number});
    return append_instr(program, (hl_pw_instr){.op = HL_PW_LOAD, .in = (uint8_t)k});
}

static void write_pointwise(const hl_graph *graph, const hl_node *node, hl_program *program)
{
    hl_pw_instr instr = hl_pw_instr_make(node);
    if (!hl_pw_is_random(instr.op)) {
        uint8_t operand[3] = {0};
        for (int32_t k = 0; k < node->n_in; k++)
            operand[k] = load_operand(graph, node, k, program, operand);
        instr.a = operand[0], instr.b = operand[1], instr.c = operand[2];
    }
    program->out[0].reg = append_instr(program, instr);
}

static bool write_sum(const hl_graph *graph, const hl_node *node, hl_program *program)
{
    const hl_ints *axes = &hl_reduce_attrs(node)->axes;
    int32_t splits[HL_PROGRAM_SPLITS], n_splits = 0;
    if (!hl_program_splits_add(&program->shape, axes, splits, &n_splits)) return false;
    hl_program_splits_set(program, splits, n_splits);
    program->out[0].reg = load_operand(graph, node, 0, program, NULL);
    program->out[0].sums = (uint8_t)hl_program_sums(program, axes);
    return true;
}

hl_status hl_program_from_node(const hl_graph *graph, hl_node_id id, hl_program *out_program)
{
    const hl_node *node = &graph->nodes[id];
    const hl_op_info *info = hl_op_get(node->op);
    bool is_pointwise = hl_pw_of_op(node->op) != HL_PW_COUNT;
    memset(out_program, 0, sizeof *out_program);
    out_program->shape = *hl_graph_shape(graph, is_pointwise ? node->out : node->in[0]);
    hl_program_splits_set(out_program, NULL, 0);
    out_program->n_in = node->n_in;
    out_program->n_out = 1;
    if (is_pointwise) {
        write_pointwise(graph, node, out_program);
        return HL_OK;
    }
    if (node->op == HL_OP_SUM && write_sum(graph, node, out_program)) return HL_OK;
    return hl_status_set(HL_ERROR_CONFIG,
                         "%s: a program must be pointwise or a sum over two groups of dims at "
                         "most, got neither",
                         info->name);
}

/* ---- its kind ---- */

hl_pw_kind hl_program_kind(const hl_program *program, const hl_graph *graph, const hl_node *node)
{
    bool is_integer = true;
    int64_t n = hl_shape_numel(&program->shape);
    for (int32_t j = 0; j < program->n_out; j++) {
        hl_dtype dtype = hl_node_out_type(graph, node, j)->dtype;
        if (dtype == HL_DTYPE_F64) return HL_PW_F64;
        is_integer = is_integer && !hl_dtype_is_float(dtype);
    }
    for (int32_t s = 0; s < program->n_code; s++) {
        const hl_pw_instr *instr = &program->code[s];
        is_integer = is_integer && !hl_pw_is_real(instr);
        if (instr->op == HL_PW_CAST && instr->number == HL_DTYPE_F64) return HL_PW_F64;
        if (instr->op != HL_PW_LOAD) continue;
        const hl_type *type = hl_node_in_type(graph, node, instr->in);
        bool is_one = hl_shape_numel(&type->shape) == 1 && n != 1;
        if (type->dtype == HL_DTYPE_F64 && !is_one) return HL_PW_F64;
        is_integer = is_integer && !hl_dtype_is_float(type->dtype);
    }
    return is_integer ? HL_PW_I64 : HL_PW_F32;
}

/* ---- the check ---- */

static hl_status fail_program(const char *rule, int64_t got)
{
    return hl_status_set(HL_ERROR_INTERNAL, "pointwise: %s, got %lld", rule, (long long)got);
}

static hl_status check_code(const hl_program *program)
{
    bool written[HL_PROGRAM_REGS] = {false};
    for (int32_t i = 0; i < program->n_code; i++) {
        const hl_pw_instr *instr = &program->code[i];
        if (instr->op >= HL_PW_COUNT) return fail_program("a micro-op must exist", instr->op);
        const uint8_t operand[3] = {instr->a, instr->b, instr->c};
        for (int k = 0; k < hl_pw_operands(instr->op); k++)
            if (operand[k] >= program->n_regs || !written[operand[k]])
                return fail_program("a register must be written before it is read", operand[k]);
        bool reads_input = instr->op == HL_PW_LOAD || hl_pw_is_random(instr->op);
        if (reads_input && instr->in >= program->n_in)
            return fail_program("an input must exist", instr->in);
        if (instr->dst >= program->n_regs || written[instr->dst])
            return fail_program("a register must be written once", instr->dst);
        written[instr->dst] = true;
    }
    for (int32_t j = 0; j < program->n_out; j++)
        if (program->out[j].reg >= program->n_regs || !written[program->out[j].reg])
            return fail_program("an output must be written", program->out[j].reg);
    return HL_OK;
}

/* Elements of output j. */
static int64_t count_output(const hl_program *program, int32_t j)
{
    const hl_shape *shape = &program->shape;
    const int32_t bounds[] = {0, program->split[0], program->split[1], shape->rank};
    int64_t n = 1;
    for (int g = 0; g < 3; g++)
        if (!(program->out[j].sums >> g & 1)) n *= hl_shape_span(shape, bounds[g], bounds[g + 1]);
    return n;
}

static hl_status check_sums(const hl_program *program, const hl_type *out_types)
{
    hl_program_groups groups = hl_program_groups_make(program);
    for (int32_t j = 0; j < program->n_out; j++) {
        if (program->out[j].sums > HL_PW_SUM_ALL)
            return fail_program("a sum must be over three groups at most", program->out[j].sums);
        if (program->out[j].statistic > HL_PW_VARIANCE)
            return fail_program("a statistic must exist", program->out[j].statistic);
        if (groups.outer != 1 && groups.sums[j] == HL_PW_SUM_OUTER)
            return fail_program("of three groups the outer one must not be summed alone", j);
        if (hl_shape_numel(&out_types[j].shape) != count_output(program, j))
            return fail_program("an output must have the elements that the code makes",
                                hl_shape_numel(&out_types[j].shape));
    }
    return HL_OK;
}

static hl_status check_loads(const hl_program *program, const hl_type *in_types)
{
    for (int32_t i = 0; i < program->n_code; i++) {
        if (program->code[i].op != HL_PW_LOAD) continue;
        hl_shape joined;
        const hl_shape *operand = &in_types[program->code[i].in].shape;
        HL_TRY(hl_shape_broadcast(operand, &program->shape, "pointwise", &joined));
        if (!hl_shape_equal(&joined, &program->shape))
            return fail_program("an input must broadcast to the iteration", program->code[i].in);
    }
    return HL_OK;
}

hl_status hl_program_check_types(const hl_program *program, const hl_type *in_types, int32_t n_in,
                                 const hl_type *out_types, int32_t n_out)
{
    if (program->n_in != n_in || n_in > HL_PROGRAM_INS)
        return fail_program("inputs must be those of the program, at most 24", n_in);
    if (program->n_out != n_out || n_out < 1 || n_out > HL_PROGRAM_OUTS)
        return fail_program("outputs must be those of the program, 1 ... 12", n_out);
    if (program->n_code < 0 || program->n_code > HL_PROGRAM_CODE)
        return fail_program("the code must have at most 96 steps", program->n_code);
    if (program->n_regs < 0 || program->n_regs > HL_PROGRAM_REGS)
        return fail_program("registers must be at most 48", program->n_regs);
    HL_TRY(hl_shape_check(&program->shape, "pointwise"));
    if (program->split[0] < 0 || program->split[0] > program->split[1] ||
        program->split[1] > program->shape.rank)
        return fail_program("splits must lie within the shape, in order", program->split[1]);
    HL_TRY(check_code(program));
    HL_TRY(check_loads(program, in_types));
    return check_sums(program, out_types);
}

hl_status hl_program_check(const hl_program *program, const hl_graph *graph, const hl_id *in,
                           int32_t n_in, const hl_type *out_types, int32_t n_out)
{
    hl_type types[HL_PROGRAM_INS];
    for (int32_t j = 0; j < program->n_out && j < HL_PROGRAM_OUTS; j++)
        if (program->out[j].statistic != HL_PW_SUM)
            return fail_program("a mean or a variance must be an anchor's", j);
    for (int32_t i = 0; i < n_in && i < HL_PROGRAM_INS; i++) types[i] = graph->values[in[i]].type;
    return hl_program_check_types(program, types, n_in, out_types, n_out);
}
