/* Launchers of pointwise.cu: every pointwise op, and fused programs.
 *
 * A node is run as the program it is (ir/program.h), written for the device at plan time and kept
 * in its memory for as long as the plan. */
#include <string.h>

#include "kernels/cuda/calls.h"
#include "kernels/cuda/program.h"

enum { MOST_THREADS = 256, SHARED_BYTES = 48 << 10 };

/* What registers hold. */
typedef enum pw_kind { PW_F32, PW_F64, PW_I64 } pw_kind;

static const struct {
    const char *kernel;
    size_t bytes;
} kinds[] = {
    [PW_F32] = {"hl_cuda_pointwise_f32", 4},
    [PW_F64] = {"hl_cuda_pointwise_f64", 8},
    [PW_I64] = {"hl_cuda_pointwise_i64", 8},
};

/* ---- programs -------------------------------------------------------------------------------- */

static hl_status read_program(const hl_graph *graph, hl_node_id id, hl_program *out_program)
{
    const hl_node *node = &graph->nodes[id];
    if (!node->program) return hl_program_from_node(graph, id, out_program);
    *out_program = *node->program;
    return HL_OK;
}

static bool is_random(const hl_pw_instr *instr)
{
    return instr->op == HL_PW_DROPOUT || instr->op == HL_PW_UNIFORM;
}

/* float64 is slow on most GPUs: only where elements are float64, not for the sake of a number. */
static pw_kind choose_kind(const hl_graph *graph, const hl_node *node, const hl_program *program)
{
    bool is_integer = true;
    int64_t n = hl_shape_numel(&program->shape);
    for (int j = 0; j < node->n_out; j++) {
        hl_dtype dtype = hl_node_out_type(graph, node, j)->dtype;
        if (dtype == HL_DTYPE_F64) return PW_F64;
        is_integer = is_integer && !hl_dtype_is_float(dtype);
    }
    for (int s = 0; s < program->n_code; s++) {
        const hl_pw_instr *instr = &program->code[s];
        is_integer = is_integer && !hl_pw_is_real(instr);
        if (instr->op != HL_PW_LOAD) continue;
        const hl_type *type = hl_node_in_type(graph, node, instr->in);
        bool is_number = hl_shape_numel(&type->shape) == 1 && n != 1;
        if (type->dtype == HL_DTYPE_F64 && !is_number) return PW_F64;
        is_integer = is_integer && !hl_dtype_is_float(type->dtype);
    }
    return is_integer ? PW_I64 : PW_F32;
}

static hl_cuda_step make_step(const hl_pw_instr *instr)
{
    int n = hl_pw_operands((hl_pw_op)instr->op);
    hl_cuda_step step = {.op = instr->op, .dst = instr->dst, .in = instr->in};
    step.a = n > 0 ? instr->a : 0;
    step.b = n > 1 ? instr->b : step.a;
    step.c = n > 2 ? instr->c : step.a;
    step.number = instr->number;
    if (instr->op == HL_PW_CAST) step.dtype = (int32_t)instr->number;
    if (is_random(instr)) {
        step.threshold = hl_dropout_threshold(instr->number);
        step.number = hl_dropout_scale(instr->number);
        memcpy(step.key, instr->key.word, sizeof step.key);
    }
    return step;
}

/* Elements a sample: the first dim counts samples, and a number is one of its own. */
static int64_t measure_sample(const hl_shape *shape)
{
    int64_t size = shape->rank > 0 ? hl_shape_span(shape, 1, shape->rank) : 1;
    return size > 0 ? size : 1;
}

static void write_program(const hl_graph *graph, const hl_node *node, const hl_program *program,
                          hl_cuda_program *out_program)
{
    hl_cuda_program *p = out_program;
    memset(p, 0, sizeof *p);
    p->n = hl_shape_numel(&program->shape);
    p->sample_size = measure_sample(&program->shape);
    p->n_in = program->n_in, p->n_out = program->n_out;
    p->n_code = program->n_code, p->n_regs = program->n_regs;
    for (int s = 0; s < program->n_code; s++) {
        const hl_pw_instr *instr = &program->code[s];
        p->code[s] = make_step(instr);
        if (instr->op != HL_PW_LOAD) continue;
        const hl_type *type = hl_node_in_type(graph, node, instr->in);
        hl_cuda_layout at = hl_cuda_layout_broadcast(&program->shape, &type->shape);
        p->in[instr->in].dtype = (int32_t)type->dtype;
        p->in[instr->in].is_whole = hl_cuda_layout_is_whole(&at);
        p->in[instr->in].at = at;
    }
    for (int j = 0; j < program->n_out; j++) {
        p->out[j].dtype = (int32_t)hl_node_out_type(graph, node, j)->dtype;
        p->out[j].reg = program->out[j].reg;
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Element i of output 0 may lie over element i of what is read at i alone, by the thread that
 * writes it. */
static uint64_t find_in_place(const hl_graph *graph, const hl_node *node, const hl_program *program)
{
    uint64_t mask = 0;
    for (int s = 0; s < program->n_code; s++) {
        const hl_pw_instr *instr = &program->code[s];
        if (instr->op != HL_PW_LOAD) continue;
        const hl_type *type = hl_node_in_type(graph, node, instr->in);
        hl_cuda_layout at = hl_cuda_layout_broadcast(&program->shape, &type->shape);
        bool has_size =
            hl_dtype_bytes(type->dtype) == hl_dtype_bytes(hl_node_out_type(graph, node, 0)->dtype);
        if (has_size && hl_cuda_layout_is_whole(&at)) mask |= (uint64_t)1 << instr->in;
    }
    return mask;
}

static hl_status query_program(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    hl_program program;
    HL_TRY(read_program(graph, id, &program));
    for (int j = 0; j < program.n_out; j++)
        if (program.out[j].reduce != HL_PW_FULL)
            return hl_reason_set(out_why_not, "needs outputs in full, got a sum");
    out_req->deterministic = true;
    out_req->in_place = find_in_place(graph, &graph->nodes[id], &program);
    return HL_OK;
}

static hl_status prepare_program(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    const hl_node *node = &graph->nodes[id];
    hl_program program;
    hl_cuda_program for_device;
    HL_TRY(read_program(graph, id, &program));
    write_program(graph, node, &program, &for_device);
    pw_kind kind = choose_kind(graph, node, &program);
    /* A column of registers a thread. */
    unsigned threads = MOST_THREADS;
    while (threads * kinds[kind].bytes * (size_t)program.n_regs > SHARED_BYTES) threads /= 2;
    int64_t n_blocks = (for_device.n + threads - 1) / threads;
    hl_cuda_shape shape = hl_cuda_shape_blocks(device, n_blocks, threads);
    shape.shared_bytes = threads * (unsigned)(kinds[kind].bytes * (size_t)program.n_regs);
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_call_kernel(&calls, kinds[kind].kernel, shape);
    hl_cuda_pass_upload(&calls, &for_device, sizeof for_device);
    hl_cuda_pass_operands(&calls);
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define PROGRAM(op, text) &(const hl_kernel)HL_CUDA_KERNEL(op, text, query_program, prepare_program)

const hl_kernel *const hl_cuda_pointwise_kernels[] = {
    PROGRAM(NEG, "neg"),
    PROGRAM(ABS, "abs"),
    PROGRAM(SIGN, "sign"),
    PROGRAM(EXP, "exp"),
    PROGRAM(EXPM1, "expm1"),
    PROGRAM(LOG, "log"),
    PROGRAM(LOG1P, "log1p"),
    PROGRAM(SQRT, "sqrt"),
    PROGRAM(RSQRT, "rsqrt"),
    PROGRAM(RECIPROCAL, "reciprocal"),
    PROGRAM(SIN, "sin"),
    PROGRAM(COS, "cos"),
    PROGRAM(TANH, "tanh"),
    PROGRAM(SIGMOID, "sigmoid"),
    PROGRAM(SOFTPLUS, "softplus"),
    PROGRAM(ERF, "erf"),
    PROGRAM(RELU, "relu"),
    PROGRAM(FLOOR, "floor"),
    PROGRAM(CEIL, "ceil"),
    PROGRAM(ROUND, "round"),
    PROGRAM(ISFINITE, "isfinite"),
    PROGRAM(NOT, "logical_not"),
    PROGRAM(CAST, "cast"),
    PROGRAM(ADD, "add"),
    PROGRAM(SUB, "sub"),
    PROGRAM(MUL, "mul"),
    PROGRAM(DIV, "div"),
    PROGRAM(POW, "pow"),
    PROGRAM(MOD, "remainder"),
    PROGRAM(MAXIMUM, "maximum"),
    PROGRAM(MINIMUM, "minimum"),
    PROGRAM(EQ, "eq"),
    PROGRAM(NE, "ne"),
    PROGRAM(LT, "lt"),
    PROGRAM(LE, "le"),
    PROGRAM(GT, "gt"),
    PROGRAM(GE, "ge"),
    PROGRAM(AND, "logical_and"),
    PROGRAM(OR, "logical_or"),
    PROGRAM(WHERE, "where"),
    PROGRAM(DROPOUT_MASK, "dropout_mask"),
    PROGRAM(UNIFORM, "uniform"),
    PROGRAM(POINTWISE_FUSED, "pointwise"),
    NULL,
};
