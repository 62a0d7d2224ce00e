/* Sequences: one launch for nodes that follow one another, each of them little work. */
#include "kernels/cuda/sequence.h"

#include <string.h>

#include "kernels/cuda/calls.h"
#include "kernels/cuda/pointwise.h"

_Static_assert((int)HL_CUDA_SEQUENCE_STEPS == (int)HL_KERNEL_HORIZONTAL &&
                   sizeof(hl_cuda_sequence_params) <= HL_CUDA_PARAM_BYTES,
               "a launch holds what a plan fuses");

enum { HEAD_BYTES = offsetof(hl_cuda_sequence_params, params) };

static const struct {
    const char *name, *kind;
} step_names[] = {
#define STEP(step, kind_) [HL_CUDA_STEP_##step] = {#step, #kind_},
    HL_CUDA_STEPS(STEP)
#undef STEP
        [HL_CUDA_STEP_program] = {"program", "compiled"},
};

struct hl_cuda_steps {
    hl_cuda_calls calls;
    const hl_graph *graph;
    bool is_generated; /* programs are compiled, not interpreted */
    bool is_refused;
    hl_cuda_sequence_params head;
    int32_t n_passes;    /* over memory, that a block makes in the launch which is listed next */
    size_t shared_bytes; /* of one of the block's blocks */
    /* Those that are programs have their work here; what the generator needs of all. */
    hl_cuda_pointwise *works;
    hl_cuda_generated_step *generated;
};

/* ---- listing --------------------------------------------------------------------------------- */

static int find_step(const char *kernel)
{
    static const char prefix[] = "hl_cuda_";
    for (int i = 0; kernel && i <= HL_CUDA_STEP_program; i++)
        if (strcmp(kernel + sizeof prefix - 1, step_names[i].name) == 0) return i;
    return -1;
}

/* As many blocks as are in one run side by side, the others behind them. */
static bool is_quick(const hl_cuda_shape *shape, int32_t n_passes)
{
    int64_t n_rounds = (shape->grid[0] + HL_PRIM_BLOCKS - 1) / HL_PRIM_BLOCKS;
    return (n_rounds - 1) * n_passes <= HL_CUDA_SEQUENCE_PASSES;
}

void hl_cuda_steps_add(hl_cuda_steps *steps, const char *kernel, const hl_cuda_shape *shape,
                       int64_t first_byte)
{
    int number = find_step(kernel);
    bool is_small = number >= 0 && is_quick(shape, steps->n_passes) &&
                    (shape->block[0] == 1 || shape->block[0] == HL_PRIM_BLOCK_THREADS);
    bool fits = steps->head.n < HL_CUDA_SEQUENCE_STEPS && first_byte < HL_CUDA_PARAM_BYTES;
    steps->is_refused = steps->is_refused || !is_small || !fits;
    if (steps->is_refused) return;
    int s = steps->head.n++;
    steps->head.step[s].number = (uint16_t)number;
    steps->head.step[s].first_byte = (uint16_t)first_byte;
    steps->generated[s].name = step_names[number].name;
    steps->generated[s].kind = step_names[number].kind;
    steps->generated[s].first_byte = first_byte;
}

/* Registers that are interpreted, and room for folds: rows take an element for each of a thread's
 * width. */
static size_t count_shared(const hl_cuda_pointwise *work, bool is_generated)
{
    const hl_cuda_program *p = &work->program;
    int n_columns = p->n_sums > 0;
    for (int s = 0; s < p->n_sums; s++)
        if (p->out[p->sum_out[s]].reduce == HL_CUDA_SUM_ROWS) n_columns = work->tiles.width;
    if (!is_generated) n_columns += p->n_regs;
    return (size_t)n_columns * HL_CUDA_TILE_THREADS * sizeof(float);
}

/* So that fusion does not depend on which of them runs, a program has to be one for both. */
static void list_program(hl_cuda_steps *steps, hl_node_id id)
{
    hl_cuda_calls *calls = &steps->calls;
    hl_cuda_pointwise *work = &steps->works[steps->head.n];
    size_t first;
    calls->status = hl_cuda_pointwise_make(steps->graph, id, work);
    if (calls->status != HL_OK) return;
    steps->is_refused = work->kind != HL_PW_F32 || work->tiles.n == 0 ||
                        hl_cuda_place_partials(work, &first) > 0 ||
                        count_shared(work, false) * HL_PRIM_BLOCKS > HL_CUDA_SEQUENCE_SHARED;
    if (steps->is_refused) return;
    size_t shared = count_shared(work, steps->is_generated);
    if (shared > steps->shared_bytes) steps->shared_bytes = shared;
    steps->n_passes = work->tiles.steps;
    steps->generated[steps->head.n].work = work;
    hl_cuda_shape shape =
        hl_cuda_shape_blocks(calls->device, work->tiles.n_tiles, HL_CUDA_TILE_THREADS);
    /* Which numbers, the generator knows. */
    const hl_cuda_numbers numbers = {.n = hl_cuda_count_numbers(work)};
    if (steps->is_generated)
        hl_cuda_call_compiled(work, "hl_cuda_program", &numbers, shape, calls);
    else
        hl_cuda_call_interpreter(work, shape, calls);
}

static void list_node(hl_cuda_steps *steps, hl_node_id id)
{
    hl_cuda_calls *calls = &steps->calls;
    hl_cuda_calls_next(calls, steps->graph, id);
    steps->n_passes = 1;
    switch (steps->graph->nodes[id].op) {
    case HL_OP_CROSS_ENTROPY:
    case HL_OP_CROSS_ENTROPY_GRAD: hl_cuda_list_loss(calls, steps->graph, id); break;
    case HL_OP_CONTROL_BEGIN:
    case HL_OP_CONTROL_MICRO:
    case HL_OP_CONTROL_APPLY: hl_cuda_list_control(calls, steps->graph, id); break;
    default: list_program(steps, id);
    }
}

/* Lists the nodes, or refuses them. Ended by end_steps, on failure too. */
static hl_status list_nodes(hl_cuda_steps *steps, hl_device *device, const hl_graph *graph,
                            const hl_node_id *ids, int32_t n, bool is_generated)
{
    *steps = (hl_cuda_steps){.graph = graph, .is_generated = is_generated};
    hl_cuda_calls *calls = &steps->calls;
    *calls = hl_cuda_calls_begin_steps(device, steps, HEAD_BYTES);
    if (calls->status == HL_OK)
        calls->status = hl_alloc((size_t)n * sizeof *steps->works, (void **)&steps->works);
    if (calls->status == HL_OK)
        calls->status =
            hl_alloc_zero((size_t)n * sizeof *steps->generated, (void **)&steps->generated);
    for (int32_t i = 0; i < n && !steps->is_refused && calls->status == HL_OK; i++)
        list_node(steps, ids[i]);
    steps->is_refused |= steps->head.n != n || calls->n_bytes > (int64_t)sizeof steps->head;
    return calls->status;
}

/* out_state NULL: the list is given up. */
static hl_status end_steps(hl_cuda_steps *steps, hl_kernel_state *out_state)
{
    hl_free(steps->works);
    hl_free(steps->generated);
    if (out_state) return hl_cuda_calls_end(&steps->calls, out_state);
    hl_cuda_calls_drop(&steps->calls);
    return HL_OK;
}

bool hl_cuda_is_sequence(hl_device *device, const hl_graph *graph, const hl_node_id *ids, int32_t n)
{
    hl_cuda_steps steps;
    bool fits = list_nodes(&steps, device, graph, ids, n, true) == HL_OK && !steps.is_refused;
    end_steps(&steps, NULL);
    return fits;
}

/* ---- preparing ------------------------------------------------------------------------------- */

static void join(hl_cuda_steps *steps, const char *kernel)
{
    hl_cuda_shape one = {{1, 1, 1},
                         {HL_CUDA_SEQUENCE_THREADS, 1, 1},
                         (unsigned)(steps->shared_bytes * HL_PRIM_BLOCKS)};
    hl_cuda_calls_join(&steps->calls, kernel, one, &steps->head, HEAD_BYTES);
}

/* Compiles the kernel of these steps, and gives each program its numbers. */
static hl_status compile_steps(hl_cuda_steps *steps, hl_device *device)
{
    char name[HL_CUDA_NAME_BYTES], *source;
    int n = steps->head.n;
    HL_TRY(hl_cuda_generate_sequence(steps->generated, n, &source, name));
    hl_status status = hl_cuda_compile(device, source, name);
    hl_free(source);
    HL_TRY(status);
    for (int s = 0; s < n; s++) {
        const hl_cuda_generated_step *step = &steps->generated[s];
        if (step->work)
            memcpy(steps->calls.params + step->first_byte +
                       offsetof(hl_cuda_compiled_params, number),
                   step->numbers.word, (size_t)step->numbers.n * sizeof *step->numbers.word);
    }
    join(steps, name);
    return HL_OK;
}

hl_status hl_cuda_prepare_sequence(hl_device *device, const hl_graph *graph, const hl_node_id *ids,
                                   int32_t n, hl_kernel_state *out_state)
{
    hl_cuda_steps steps;
    hl_status status = list_nodes(&steps, device, graph, ids, n, true);
    if (status == HL_OK) status = compile_steps(&steps, device);
    if (status == HL_OK) return end_steps(&steps, out_state);
    end_steps(&steps, NULL);
    if (status != HL_ERROR_DEVICE) return status;
    if (list_nodes(&steps, device, graph, ids, n, false) == HL_OK) join(&steps, "hl_cuda_sequence");
    return end_steps(&steps, out_state);
}
