/* Launchers of pointwise programs: every pointwise op, fused programs, and sums that are programs.
 *
 * A node is run as the program it is (ir/program.h), by a kernel that is generated for it, or where
 * there is no NVRTC by the interpreter, which iterates over the same tiles and gives the same bits.
 * So fusion and the needs of a plan do not depend on which of them runs. */
#include "kernels/cuda/pointwise.h"

#include <string.h>

_Static_assert((int)HL_CUDA_OPERANDS >= HL_PROGRAM_INS + HL_PROGRAM_OUTS, "all operands fit");
_Static_assert((int)HL_CUDA_TILE_SUMS == (int)HL_PROGRAM_OUTS, "all sums fit");
enum { THREADS = HL_CUDA_TILE_THREADS };

static const struct {
    const char *variant; /* of kernels */
    hl_dtype dtype;
} kinds[] = {
    [HL_PW_F32] = {"f32", HL_DTYPE_F32},
    [HL_PW_F64] = {"f64", HL_DTYPE_F64},
    [HL_PW_I64] = {"i64", HL_DTYPE_I64},
};

/* ---- programs -------------------------------------------------------------------------------- */

static hl_cuda_step make_step(const hl_pw_instr *instr)
{
    int n = hl_pw_operands((hl_pw_op)instr->op);
    hl_cuda_step step = {.op = instr->op, .dst = instr->dst, .in = instr->in};
    step.a = n > 0 ? instr->a : 0;
    step.b = n > 1 ? instr->b : step.a;
    step.c = n > 2 ? instr->c : step.a;
    step.number = instr->number;
    if (instr->op == HL_PW_CAST) step.dtype = (int32_t)instr->number;
    if (hl_cuda_is_random(&step)) {
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

/* What the tile iterator sums. Along a side of one element it is everything, which needs no rows
 * and columns. Sums over the middle group are by batch; others of three groups are of rows, where
 * they keep the inner one, or of columns. */
static int32_t find_reduce(const hl_program_groups *groups, int j)
{
    int sums = groups->sums[j];
    bool is_three = groups->outer != 1;
    if (sums == HL_PW_FULL) return HL_CUDA_SUM_NONE;
    if (sums == HL_PW_SUM_ALL) return HL_CUDA_SUM_ALL;
    if (!is_three && sums == HL_PW_SUM_ROWS && groups->inner == 1) return HL_CUDA_SUM_ALL;
    if (!is_three && sums == HL_PW_SUM_COLS && groups->middle == 1) return HL_CUDA_SUM_ALL;
    return sums & HL_PW_SUM_INNER ? HL_CUDA_SUM_COLS : HL_CUDA_SUM_ROWS;
}

static void write_program(const hl_graph *graph, const hl_node *node, const hl_program *program,
                          const hl_program_groups *groups, hl_cuda_program *out_program)
{
    hl_cuda_program *p = out_program;
    memset(p, 0, sizeof *p);
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
        p->out[j].reduce = find_reduce(groups, j);
        if (p->out[j].reduce != HL_CUDA_SUM_NONE) p->sum_out[p->n_sums++] = j;
    }
}

/* ---- the tile iterator ----------------------------------------------------------------------- */

/* Rows that a thread may take where that leaves no partials to merge (more of them where there are
 * batches to keep a GPU busy, up to so many), and where it does; and rows of tiles, above which a
 * thread takes more. In what is small tiles are narrow, down to a thread's
 * columns, for the sake of fewer rows a thread: then memory is read in pieces, but launches, and
 * rows one behind the other, cost more than that. */
enum {
    ALONE_STEPS = 16,
    ALONE_BATCHES = 8,
    MIN_STEPS = 4,
    MAX_ROW_TILES = 512,
    NARROW_ELEMENTS = 1 << 17
};

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The powers of 2 from 1 on: the first that is n or more, at most `most`. */
static int32_t cover(int64_t n, int32_t most)
{
    int32_t power = 1;
    while (power < n && power < most) power *= 2;
    return power;
}

/* As many lanes as leave a thread few rows, if then there is nothing to merge. */
static void narrow_tiles(hl_cuda_tiles *tiles)
{
    int64_t n_rows = tiles->height;
    int32_t lanes = tiles->lanes;
    if (tiles->n > NARROW_ELEMENTS || n_rows > (int64_t)THREADS * ALONE_STEPS) return;
    while (lanes > 1 && n_rows > (int64_t)MIN_STEPS * (THREADS / lanes)) lanes /= 2;
    tiles->lanes = lanes;
    tiles->rows = cover(n_rows, THREADS / lanes);
    tiles->strips = THREADS / lanes / tiles->rows;
}

/* n elements in rows of `cols`; 0: in rows as they suit a block. batches: as many have sums over
 * rows of their own. keeps: sums run over rows; crosses: or along them, which wide tiles do at
 * once. */
static hl_cuda_tiles make_tiles(int64_t n, int64_t cols, int64_t batches, int32_t width, bool keeps,
                                bool crosses)
{
    hl_cuda_tiles tiles = {.n = n, .batches = batches, .width = width, .steps = 1};
    tiles.cols = cols > 0 ? cols : (int64_t)THREADS * width;
    tiles.height = divide_up(divide_up(n, tiles.cols), batches);
    tiles.lanes = cols > 0 ? cover(divide_up(cols, width), 32) : 32;
    tiles.rows = cols > 0 ? cover(tiles.height, THREADS / tiles.lanes) : 1;
    tiles.strips = THREADS / tiles.lanes / tiles.rows;
    for (int s = 0; s < HL_CUDA_TILE_SUMS; s++) tiles.partial[s] = -1;
    if (n == 0) return tiles;
    if (keeps && !crosses && cols > 0) narrow_tiles(&tiles);
    int64_t n_rows = divide_up(tiles.height, tiles.rows); /* of threads */
    int64_t alone = ALONE_STEPS * (batches < ALONE_BATCHES ? batches : ALONE_BATCHES);
    if (keeps && n_rows <= alone) {
        tiles.steps = (int32_t)n_rows;
    } else if (keeps) {
        tiles.steps = MIN_STEPS;
        while (divide_up(n_rows, tiles.steps) > MAX_ROW_TILES) tiles.steps *= 2;
    }
    int64_t n_strips = divide_up(tiles.cols, (int64_t)tiles.lanes * tiles.width) * batches;
    int64_t n_across = divide_up(n_strips, tiles.strips);
    tiles.n_col_tiles = (int32_t)n_across;
    tiles.n_tiles = (int32_t)(n_across * divide_up(n_rows, tiles.steps));
    return tiles;
}

/* How many partials one result of such a sum has, and how many all have together. */
static int64_t count_partials(const hl_cuda_tiles *tiles, int32_t reduce, int64_t *out_total)
{
    int64_t n_strips = divide_up(tiles->cols, (int64_t)tiles->lanes * tiles->width);
    int64_t n_each = reduce == HL_CUDA_SUM_ROWS   ? tiles->n_tiles / tiles->n_col_tiles
                     : reduce == HL_CUDA_SUM_COLS ? n_strips
                                                  : tiles->n_tiles;
    int64_t n_results = reduce == HL_CUDA_SUM_ROWS   ? tiles->batches * tiles->cols
                        : reduce == HL_CUDA_SUM_COLS ? divide_up(tiles->n, tiles->cols)
                                                     : 1;
    *out_total = n_each * n_results;
    return n_each;
}

/* Elements that a thread moves at once: what makes 16 bytes of the widest operand, and in rows of
 * their own a divisor of the row. */
static int32_t choose_width(const hl_cuda_program *p, int64_t cols)
{
    size_t widest = 16 / HL_CUDA_TILE_WIDTH;
    for (int s = 0; s < p->n_code; s++) {
        size_t bytes = hl_dtype_bytes((hl_dtype)p->in[p->code[s].in].dtype);
        bool is_moved = p->code[s].op == HL_PW_LOAD && p->in[p->code[s].in].is_whole;
        if (is_moved && bytes > widest) widest = bytes;
    }
    for (int j = 0; j < p->n_out; j++) {
        size_t bytes = hl_dtype_bytes((hl_dtype)p->out[j].dtype);
        if (p->out[j].reduce == HL_CUDA_SUM_NONE && bytes > widest) widest = bytes;
    }
    int32_t width = (int32_t)(16 / widest);
    while (cols % width) width /= 2;
    return width;
}

hl_status hl_cuda_pointwise_make(const hl_graph *graph, hl_node_id id, hl_cuda_pointwise *out_work)
{
    const hl_node *node = &graph->nodes[id];
    hl_program program;
    if (node->program)
        program = *node->program;
    else
        HL_TRY(hl_program_from_node(graph, id, &program));
    hl_cuda_pointwise *work = out_work;
    hl_cuda_program *p = &work->program;
    work->groups = hl_program_groups_make(&program);
    write_program(graph, node, &program, &work->groups, p);
    work->kind = hl_program_kind(&program, graph, node);
    int64_t n = hl_shape_numel(&program.shape), cols = 0, batches = 1;
    bool keeps = false, crosses = false;
    for (int s = 0; s < p->n_sums && n > 0; s++) {
        int32_t reduce = p->out[p->sum_out[s]].reduce;
        keeps = keeps || reduce != HL_CUDA_SUM_COLS;
        crosses = crosses || reduce == HL_CUDA_SUM_COLS;
        if (reduce != HL_CUDA_SUM_ALL) cols = work->groups.inner;
        if (work->groups.sums[p->sum_out[s]] == HL_PW_SUM_MIDDLE) batches = work->groups.outer;
    }
    work->tiles = make_tiles(n, cols, batches, choose_width(p, cols), keeps, crosses);
    return HL_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Where the next block of scratch begins. */
static size_t take_scratch(size_t *used, int64_t n, size_t element_bytes)
{
    size_t at = *used;
    *used += (size_t)hl_round_up(n * (int64_t)element_bytes, 256);
    return at;
}

/* The partials of a sum that a stage merges: over their rows, of cols elements, or along them, or
 * all. */
typedef struct merge_stage {
    int32_t how;
    int64_t cols;
} merge_stage;

enum { MERGE_STAGES = 2 };

/* Returns how many there are; *out_total: partials. */
static int list_stages(const hl_cuda_pointwise *work, int s, merge_stage *out_stages,
                       int64_t *out_total)
{
    const hl_program_groups *groups = &work->groups;
    int j = work->program.sum_out[s], n = 0;
    int32_t how = work->program.out[j].reduce;
    int64_t n_each = count_partials(&work->tiles, how, out_total);
    bool is_three = groups->outer != 1, by_outer = is_three && !(groups->sums[j] & HL_PW_SUM_OUTER);
    if (how == HL_CUDA_SUM_ALL) {
        if (n_each > 1) out_stages[n++] = (merge_stage){how, 0};
    } else if (how == HL_CUDA_SUM_ROWS) {
        int64_t cols = by_outer ? groups->outer * groups->inner : groups->inner;
        if (*out_total > cols) out_stages[n++] = (merge_stage){how, cols};
    } else {
        bool sums_middle = is_three && groups->sums[j] & HL_PW_SUM_MIDDLE;
        int64_t cols = sums_middle ? groups->middle * n_each : n_each;
        if (cols > 1) out_stages[n++] = (merge_stage){how, cols};
        if (is_three && !by_outer)
            out_stages[n++] = (merge_stage){HL_CUDA_SUM_ROWS, groups->middle};
    }
    return n;
}

/* Adds the calls that merge the partials of sum s; where calls is NULL, it only counts the scratch
 * that they need. */
static void merge_partials(const hl_cuda_pointwise *work, int s, size_t *used, hl_cuda_calls *calls)
{
    size_t bytes = hl_dtype_bytes(kinds[work->kind].dtype);
    size_t from = (size_t)work->tiles.partial[s] * bytes, to = 0;
    int j = work->program.sum_out[s];
    merge_stage stages[MERGE_STAGES];
    int64_t total;
    int n_stages = list_stages(work, s, stages, &total);
    for (int k = 0; k < n_stages; k++) {
        int32_t how = stages[k].how;
        int64_t cols = stages[k].cols, n = 0;
        for (; n != 1; from = to) {
            bool crosses = how == HL_CUDA_SUM_COLS;
            hl_cuda_tiles tiles = make_tiles(total, cols, 1, 1, !crosses, crosses);
            n = count_partials(&tiles, how, &total);
            bool is_last = n == 1 && k + 1 == n_stages;
            if (crosses) cols = n;
            if (!is_last) to = take_scratch(used, total, bytes);
            if (!calls) continue;
            HL_CUDA_CALL(
                calls, pointwise_merge, kinds[work->kind].variant,
                hl_cuda_shape_blocks(calls->device, tiles.n_tiles, THREADS),
                .at.from = hl_cuda_scratch(from),
                .at.to = is_last ? hl_cuda_out(calls, j) : hl_cuda_scratch(to), .tiles = tiles,
                .to_dtype = is_last ? work->program.out[j].dtype : (int32_t)kinds[work->kind].dtype,
                .how = how);
        }
    }
}

size_t hl_cuda_place_partials(hl_cuda_pointwise *work, size_t *out_first)
{
    size_t used = 0, bytes = hl_dtype_bytes(kinds[work->kind].dtype);
    for (int s = 0; s < work->program.n_sums && work->tiles.n > 0; s++) {
        int64_t total;
        merge_stage stages[MERGE_STAGES];
        if (list_stages(work, s, stages, &total) == 0) continue;
        work->tiles.partial[s] = (int64_t)(take_scratch(&used, total, bytes) / bytes);
    }
    size_t counted = used;
    for (int s = 0; s < work->program.n_sums; s++)
        if (work->tiles.partial[s] >= 0) merge_partials(work, s, &counted, NULL);
    *out_first = used;
    return counted;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Element i of output j may lie over element i of what is read at i alone: the thread that writes
 * it has read all that it needs by then. */
static uint64_t find_in_place(const hl_cuda_program *p, int j)
{
    uint64_t mask = 0;
    for (int s = 0; s < p->n_code && p->out[j].reduce == HL_CUDA_SUM_NONE; s++) {
        int in = p->code[s].in;
        if (p->code[s].op == HL_PW_LOAD && p->in[in].is_whole &&
            hl_dtype_bytes((hl_dtype)p->in[in].dtype) == hl_dtype_bytes((hl_dtype)p->out[j].dtype))
            mask |= (uint64_t)1 << in;
    }
    return mask;
}

static hl_status query_program(hl_device *device, const hl_graph *graph, hl_node_id id,
                               hl_kernel_req *out_req, hl_reason *out_why_not)
{
    (void)device;
    hl_cuda_pointwise work;
    size_t first;
    if (hl_cuda_pointwise_make(graph, id, &work) != HL_OK)
        return hl_reason_set(out_why_not, "%s", hl_status_message());
    bool by_batch = work.groups.outer != 1 && work.groups.sums[0] == HL_PW_SUM_MIDDLE;
    if (graph->nodes[id].op == HL_OP_SUM && by_batch)
        return hl_reason_set(out_why_not, "needs what makes its operand, got a sum over middle "
                                          "axes alone");
    out_req->deterministic = true;
    out_req->scratch_bytes = hl_cuda_place_partials(&work, &first);
    for (int j = 0; j < work.program.n_out; j++)
        out_req->in_place[j] = find_in_place(&work.program, j);
    return HL_OK;
}

void hl_cuda_call_compiled(const hl_cuda_pointwise *work, const char *name,
                           const hl_cuda_numbers *numbers, hl_cuda_shape shape,
                           hl_cuda_calls *calls)
{
    hl_cuda_compiled_params params = {.at.scratch = hl_cuda_scratch(0), .tiles = work->tiles};
    int n_words = numbers->n > 0 ? numbers->n : 1;
    for (int k = 0; k < work->program.n_in + work->program.n_out; k++)
        params.at.operand[k] = hl_cuda_operand(calls, k);
    memcpy(params.number, numbers->word, (size_t)numbers->n * sizeof *numbers->word);
    size_t bytes =
        offsetof(hl_cuda_compiled_params, number) + (size_t)n_words * sizeof *params.number;
    hl_cuda_call_kernel(calls, name, NULL, shape, &params, bytes, sizeof params.at);
}

/* A column of registers a thread. */
void hl_cuda_call_interpreter(const hl_cuda_pointwise *work, hl_cuda_shape shape,
                              hl_cuda_calls *calls)
{
    size_t bytes = hl_dtype_bytes(kinds[work->kind].dtype);
    shape.shared_bytes = (unsigned)(THREADS * bytes * (size_t)work->program.n_regs);
    hl_cuda_pointwise_params params = {
        .at.program = hl_cuda_upload(calls, &work->program, sizeof work->program),
        .at.scratch = hl_cuda_scratch(0),
        .tiles = work->tiles};
    for (int k = 0; k < work->program.n_in + work->program.n_out; k++)
        params.at.operand[k] = hl_cuda_operand(calls, k);
    HL_CUDA_CALL_WITH(calls, pointwise, kinds[work->kind].variant, shape, &params);
}

static hl_status prepare_program(hl_device *device, const hl_graph *graph, hl_node_id id,
                                 hl_kernel_state *out_state)
{
    hl_cuda_pointwise work;
    hl_cuda_numbers numbers;
    size_t used;
    HL_TRY(hl_cuda_pointwise_make(graph, id, &work));
    hl_cuda_place_partials(&work, &used);
    char name[HL_CUDA_NAME_BYTES], *source = NULL;
    hl_status compiled = HL_OK;
    if (work.tiles.n > 0) {
        HL_TRY(hl_cuda_generate(&work, &source, name, &numbers));
        compiled = hl_cuda_compile(device, source, name);
        hl_free(source);
    }
    if (compiled != HL_OK && compiled != HL_ERROR_DEVICE) return compiled;
    hl_cuda_calls calls = hl_cuda_calls_begin(device, graph, id);
    hl_cuda_shape shape = hl_cuda_shape_blocks(device, work.tiles.n_tiles, THREADS);
    if (work.tiles.n > 0 && compiled == HL_OK)
        hl_cuda_call_compiled(&work, name, &numbers, shape, &calls);
    else if (work.tiles.n > 0)
        hl_cuda_call_interpreter(&work, shape, &calls);
    for (int s = 0; s < work.program.n_sums; s++) {
        int j = work.program.sum_out[s];
        if (work.tiles.n == 0) /* the sum of nothing */
            hl_cuda_call_zero(&calls, hl_cuda_out(&calls, j),
                              hl_type_bytes(hl_node_out_type(graph, &graph->nodes[id], j)));
        else if (work.tiles.partial[s] >= 0)
            merge_partials(&work, s, &used, &calls);
    }
    return hl_cuda_calls_end(&calls, out_state);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define PROGRAM(id, text)                                                                          \
    &(const hl_kernel){.op = HL_OP_##id,                                                           \
                       .name = "cuda." text,                                                       \
                       .query = query_program,                                                     \
                       .prepare = prepare_program,                                                 \
                       .prepare_horizontal = hl_cuda_prepare_horizontal,                           \
                       .is_horizontal = hl_cuda_is_horizontal,                                     \
                       .prepare_sequence = hl_cuda_prepare_sequence,                               \
                       .is_sequence = hl_cuda_is_sequence,                                         \
                       .launch = hl_cuda_calls_launch,                                             \
                       .release = hl_cuda_calls_release},

const hl_kernel *const hl_cuda_pointwise_kernels[] = {
#define HL_PW(id, name, ...)      PROGRAM(id, name)
#define HL_PW_CAST(id, name, ...) PROGRAM(id, name)
#define HL_PW_DRAW(id, name, ...) PROGRAM(id, name)
#include "ir/pointwise.def"
    PROGRAM(SUM, "sum.program") PROGRAM(POINTWISE_FUSED, "pointwise") NULL,
};
