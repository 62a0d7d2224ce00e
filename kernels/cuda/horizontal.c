/* Horizontal fusion: one launch for several independent pointwise programs (parts.h) that follow
 * one another in a plan: casts of weights, and other small programs. */
#include <string.h>

#include "kernels/cuda/calls.h"
#include "kernels/cuda/pointwise.h"

_Static_assert((int)HL_CUDA_PARTS == (int)HL_KERNEL_HORIZONTAL &&
                   (int)HL_CUDA_PARTS_OPERANDS >= HL_PROGRAM_INS + HL_PROGRAM_OUTS,
               "a launch holds one program at least, and what a plan fuses");

enum { THREADS = HL_CUDA_TILE_THREADS };

static const struct {
    const char *variant;
    size_t bytes; /* of a register */
} kinds[] = {
    [HL_PW_F32] = {"f32", sizeof(float)},
    [HL_PW_F64] = {"f64", sizeof(double)},
    [HL_PW_I64] = {"i64", sizeof(int64_t)},
};

/* Compares all but keys; a cast's dtype is its number too. */
static bool is_same_step(const hl_cuda_step *a, const hl_cuda_step *b)
{
    return a->op == b->op && a->dst == b->dst && a->a == b->a && a->b == b->b && a->c == b->c &&
           a->in == b->in && memcmp(&a->number, &b->number, sizeof a->number) == 0;
}

/* Do both run the same code over memory, element by element? Such programs are one in a generated
 * kernel, and take no more registers there than alone. */
static bool is_alike(const hl_cuda_program *p, const hl_cuda_program *q)
{
    if (p->n_code != q->n_code || p->n_in != q->n_in || p->n_out != q->n_out) return false;
    for (int s = 0; s < p->n_code; s++) {
        int in = p->code[s].in;
        if (hl_cuda_is_random(&p->code[s]) || !is_same_step(&p->code[s], &q->code[s])) return false;
        if (p->code[s].op != HL_PW_LOAD) continue;
        if (!p->in[in].is_whole || !q->in[in].is_whole) return false;
        if (p->in[in].dtype != q->in[in].dtype) return false;
    }
    for (int j = 0; j < p->n_out; j++)
        if (p->out[j].dtype != q->out[j].dtype || p->out[j].reg != q->out[j].reg) return false;
    return true;
}

/* Fuses small programs, or ones that are alike. A program is small when it has no
 * more blocks than keep the device busy: it takes no longer than a launch, and leaves room for
 * others. A large one would pay more than a launch for the registers of the others, which all
 * blocks of a kernel have. */
bool hl_cuda_is_horizontal(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                           int32_t n)
{
    hl_cuda_pointwise first, work;
    bool are_small = true, are_alike = true;
    int n_operands = 0, n_numbers = 0;
    if (hl_cuda_pointwise_make(graph, ids[0], &first) != HL_OK) return false;
    for (int32_t i = 0; i < n; i++) {
        if (hl_cuda_pointwise_make(graph, ids[i], &work) != HL_OK) return false;
        int64_t n_tiles = work.tiles.n_tiles;
        if (n_tiles == 0 || work.program.n_sums || work.kind != first.kind) return false;
        are_small &= hl_cuda_shape_blocks(device, n_tiles, THREADS).grid[0] == n_tiles;
        are_alike &= is_alike(&first.program, &work.program);
        n_operands += work.program.n_in + work.program.n_out;
        n_numbers += hl_cuda_count_numbers(&work);
    }
    return (are_small || are_alike || n == 1) && n_operands <= HL_CUDA_PARTS_OPERANDS &&
           n_numbers <= HL_CUDA_PARTS_NUMBERS;
}

/* Lays out blocks and operands, one part after the other. Returns how many operands there are. */
static int lay_out(hl_device *device, const hl_cuda_pointwise *works, int32_t n,
                   hl_cuda_parts *parts)
{
    int n_operands = 0;
    int64_t n_blocks = 0;
    for (int32_t i = 0; i < n; i++) {
        const hl_cuda_program *p = &works[i].program;
        parts->n[i] = works[i].tiles.n;
        parts->first_block[i] = (int32_t)n_blocks;
        parts->first_operand[i] = (uint8_t)n_operands;
        n_blocks += hl_cuda_shape_blocks(device, works[i].tiles.n_tiles, THREADS).grid[0];
        n_operands += p->n_in + p->n_out;
    }
    for (int32_t i = n; i <= HL_CUDA_PARTS; i++) parts->first_block[i] = (int32_t)n_blocks;
    return n_operands;
}

static hl_status compile_horizontal(hl_device *device, const hl_cuda_pointwise *works, int32_t n,
                                    char *out_name, hl_cuda_compiled_parts_params *params)
{
    char *source;
    HL_TRY(hl_cuda_generate_horizontal(works, n, &source, out_name, params));
    hl_status status = hl_cuda_compile(device, source, out_name);
    hl_free(source);
    return status;
}

static void call_interpreter(const hl_cuda_pointwise *works, int32_t n, hl_cuda_shape shape,
                             const hl_cuda_compiled_parts_params *compiled, hl_cuda_calls *calls)
{
    size_t column = kinds[works[0].kind].bytes * THREADS;
    hl_cuda_pointwise_parts_params params = {.parts = compiled->parts};
    hl_cuda_program *programs;
    calls->status = hl_alloc((size_t)n * sizeof *programs, (void **)&programs);
    if (calls->status != HL_OK) return;
    for (int32_t i = 0; i < n; i++) {
        programs[i] = works[i].program;
        unsigned bytes = (unsigned)(column * (size_t)programs[i].n_regs);
        if (bytes > shape.shared_bytes) shape.shared_bytes = bytes;
    }
    memcpy(params.at.operand, compiled->at.operand, sizeof params.at.operand);
    params.at.programs = hl_cuda_upload(calls, programs, (size_t)n * sizeof *programs);
    HL_CUDA_CALL_WITH(calls, pointwise_parts, kinds[works[0].kind].variant, shape, &params);
    hl_free(programs);
}

static hl_status prepare_works(hl_device *device, const hl_graph *graph, hl_node_id id,
                               const hl_cuda_pointwise *works, int32_t n,
                               hl_kernel_state *out_state)
{
    hl_cuda_compiled_parts_params params = {0};
    char name[HL_CUDA_NAME_BYTES];
    int n_operands = lay_out(device, works, n, &params.parts);
    for (int k = 0; k < n_operands; k++) params.at.operand[k] = hl_cuda_arg(k);
    hl_cuda_shape shape = {{(unsigned)params.parts.first_block[n], 1, 1}, {THREADS, 1, 1}, 0};
    hl_status compiled = compile_horizontal(device, works, n, name, &params);
    if (compiled != HL_OK && compiled != HL_ERROR_DEVICE) return compiled;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    if (compiled == HL_OK)
        hl_cuda_call_kernel(&calls, name, NULL, shape, &params, sizeof params, sizeof params.at);
    else
        call_interpreter(works, n, shape, &params, &calls);
    return hl_cuda_calls_end(&calls, out_state);
}

hl_status hl_cuda_prepare_horizontal(hl_device *device, const hl_graph *graph,
                                     const hl_node_id *ids, int32_t n, hl_kernel_state *out_state)
{
    hl_cuda_pointwise *works = NULL;
    hl_status status;
    HL_GOTO(hl_alloc((size_t)n * sizeof *works, (void **)&works));
    for (int32_t i = 0; i < n; i++) HL_GOTO(hl_cuda_pointwise_make(graph, ids[i], &works[i]));
    status = prepare_works(device, graph, ids[0], works, n, out_state);
cleanup:
    hl_free(works);
    return status;
}
