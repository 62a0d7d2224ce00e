/* The kernels of recurrences (ir/recurrence.h), written once for all types of a GEMM core. A file
 * that includes this gives the core first:
 *
 * TYPE          the core's type (gemm.h)
 * DTYPE         that of w_hh
 * ELEMENT       a term of a product
 * KERNEL(name)  a kernel's whole name
 * KERNELS       the array of kernels
 * NS_PER_MAC    a multiply-add on one core, ns, roughly
 * store_terms   writes lanes of a vector as terms
 *
 * The idea: w_hh is packed once, in the first phase, for all steps. A tile of rows goes through all
 * steps of time in the second phase, with no barrier, since rows need nothing of one another. Where
 * there are too few rows for that and more than one thread, every step is a phase instead, which is
 * cut by units, and whose products read what the phase before has made of all units. Both ways are
 * the same calls for rows [n0, n1) and panels [p0, p1) of columns, and give the same bits.
 *
 * A step's product adds to z where the gates are kept for the gradient, which may be z's own
 * memory. Functions of gates follow in that place. The states that products read are copies in the
 * core's type, at a stride that shares no cache sets. A row that has ended, or in reverse has not
 * begun, takes no part in a step: its copy of the state stays as it is.
 *
 * Backward, what the state before a step gets is summed in the memory of h0's gradient, and a
 * cell's in that of c0's. */
#include "ir/recurrence.h"

enum {
    /* Rows of a tile: a step's gates stay in the first caches, unless weights come from beyond the
     * second, and many rows have to pay for that. */
    TILE_ROWS = 2 * HL_GEMM_ROWS_BEST,
    TILE_MOST = 10 * HL_GEMM_ROWS_BEST,
    WEIGHTS_NEAR = 1 << 20, /* bytes of packed weights */
    TILE_LEAST = 4,         /* rows that a thread should have */
    UNITS_WEIGHT = 1 << 16, /* elements of w_hh that pay for a barrier at every step */
    WEIGHTS_MOST = 5
};
static const double NS_PER_GATE = 0.4; /* its function, and reading and writing it */

/* A packed matrix in the scratch of all threads. */
typedef struct packed_weight {
    hl_gemm_b b; /* `at` is set in a call: `offset` elements behind its operand */
    int operand;
    int64_t offset, panels, panel_words, first_word;
} packed_weight;

typedef struct recurrence_state {
    hl_recurrence r;
    int n_in;
    bool is_grad, by_units;
    int64_t tile, n_tiles;   /* rows of a tile, tiles */
    int64_t n_panels;        /* of the product that has the most columns */
    int64_t n_packed, words; /* panels of all weights, and their words */
    int n_weights;
    packed_weight weights[WEIGHTS_MOST]; /* forward each gate's, backward all; then w_hr */
    /* Rows in scratch, of a thread's tile, or of all rows: the state's terms, what a projection
     * gets, terms of the gates' gradients. n_copies: of what a step reads and writes anew. */
    int64_t ld_state, ld_full, ld_gates;
    size_t state_at, full_at, gates_at, rows_bytes;
    int64_t n_copies;
    size_t gemm_bytes;
} recurrence_state;

/* ---- sizes ----------------------------------------------------------------------------------- */

static int64_t count_gates(const hl_recurrence *r)
{
    return r->G * r->H;
}

/* Terms from one row to the next: whole words, and no multiple of what shares cache sets. */
static int64_t pad_row(int64_t n)
{
    int64_t padded = hl_round_up(n, 16);
    return padded % 512 == 0 ? padded + 16 : padded;
}

/* B (k,n), whose element (i, j) is i * k_stride + j * n_stride behind the offset. */
static void add_weight(recurrence_state *s, int operand, hl_dtype dtype, int64_t offset, int64_t k,
                       int64_t n, int64_t k_stride, int64_t n_stride)
{
    packed_weight w = {.b = {.type = TYPE,
                             .dtype = dtype,
                             .n_segments = 1,
                             .k = k,
                             .n = n,
                             .k_stride = k_stride,
                             .n_stride = n_stride},
                       .operand = operand,
                       .offset = offset,
                       .panels = hl_gemm_panels(n),
                       .panel_words = hl_gemm_count_rows(TYPE, 1, k) * HL_GEMM_PANEL,
                       .first_word = s->words};
    s->weights[s->n_weights++] = w;
    s->words += w.panels * w.panel_words;
    s->n_packed += w.panels;
    s->n_panels = hl_cpu_max(s->n_panels, w.panels);
}

/* Neighbours among the gates' weights are one weight, if a gate has whole panels. */
static void add_weights(recurrence_state *s)
{
    const hl_recurrence *r = &s->r;
    if (s->is_grad) add_weight(s, HL_RECURRENCE_W, DTYPE, 0, count_gates(r), r->P, r->P, 1);
    for (int64_t g = 0; !s->is_grad && g < r->G; g++)
        add_weight(s, HL_RECURRENCE_W, DTYPE, g * r->H * r->P, r->P, r->H, 1, r->P);
    if (r->w_hr >= 0 && s->is_grad) add_weight(s, r->w_hr, HL_DTYPE_F32, 0, r->P, r->H, r->H, 1);
    if (r->w_hr >= 0 && !s->is_grad) add_weight(s, r->w_hr, HL_DTYPE_F32, 0, r->H, r->P, 1, r->H);
}

static hl_gemm make_product(int64_t n, int64_t k, int64_t a_row)
{
    return (hl_gemm){.type = TYPE,
                     .n = n,
                     .k = k,
                     .a_row = a_row,
                     .a_col = 1,
                     .n_segments = 1,
                     .b_rows = hl_gemm_count_rows(TYPE, 1, k),
                     .first = true,
                     .last = true,
                     .epilogue = {.alpha = 1}};
}

static size_t reserve(recurrence_state *s, int64_t rows, int64_t ld, size_t bytes)
{
    size_t at = s->rows_bytes;
    s->rows_bytes += (size_t)hl_round_up(rows * ld * (int64_t)bytes, HL_ALIGN);
    return at;
}

static void reserve_rows(recurrence_state *s)
{
    const hl_recurrence *r = &s->r;
    int64_t rows = s->tile * s->n_copies;
    s->ld_state = pad_row(r->P), s->ld_full = pad_row(r->H), s->ld_gates = pad_row(count_gates(r));
    const hl_gemm products[] = {make_product(count_gates(r), r->P, s->ld_state),
                                make_product(r->P, count_gates(r), s->ld_gates),
                                make_product(r->P, r->H, s->ld_full),
                                make_product(r->H, r->P, s->ld_state)};
    for (int i = 0; i < 4; i++)
        if (hl_gemm_scratch_bytes(&products[i]) > s->gemm_bytes)
            s->gemm_bytes = hl_gemm_scratch_bytes(&products[i]);
    s->gemm_bytes = (size_t)hl_round_up((int64_t)s->gemm_bytes, HL_ALIGN);
    if (!s->is_grad || r->has_projection)
        s->state_at = reserve(s, rows, s->ld_state, sizeof(float));
    if (r->has_projection) s->full_at = reserve(s, s->tile, s->ld_full, sizeof(float));
    if (s->is_grad) s->gates_at = reserve(s, rows, s->ld_gates, sizeof(ELEMENT));
}

static recurrence_state make_state(const hl_device *device, const hl_graph *graph,
                                   const hl_node *node)
{
    recurrence_state s = {.r = hl_recurrence_of(graph, node),
                          .n_in = node->n_in,
                          .is_grad = node->op == HL_OP_RECURRENCE_GRAD,
                          .n_copies = 1};
    const int64_t N = s.r.N, threads = device->n_threads;
    add_weights(&s);
    s.by_units = threads > 1 && N < TILE_LEAST * threads && s.n_panels > 1 &&
                 count_gates(&s.r) * s.r.P >= UNITS_WEIGHT;
    int64_t most = s.words * (int64_t)sizeof(hl_gemm_word) <= WEIGHTS_NEAR ? TILE_ROWS : TILE_MOST;
    s.n_tiles = hl_cpu_max(hl_cpu_ceil_div(N, most), hl_cpu_min(threads, N / TILE_LEAST));
    if (s.by_units || s.n_tiles < 1) s.n_tiles = 1;
    s.tile = hl_cpu_ceil_div(N, s.n_tiles);
    s.n_tiles = hl_cpu_ceil_div(N, s.tile);
    if (s.by_units) s.n_copies = 2;
    reserve_rows(&s);
    return s;
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* Rows [n0, n1) of something and columns [j0, j1), which are whole panels but for the last one. */
typedef struct part {
    int64_t n0, n1, p0, p1;
} part;

typedef struct call {
    const recurrence_state *s;
    void *const *args, *const *outs;
    const int32_t *lengths;
    hl_gemm_word *packed;
    char *rows, *gemm; /* scratch; `rows` begins with row n_first */
    int64_t n_first;
} call;

static call make_call(const recurrence_state *s, void *const *args, const hl_launch *launch,
                      int64_t n_first)
{
    char *own = launch->thread_scratch, *shared = launch->scratch;
    size_t packed_bytes = (size_t)hl_round_up(s->words * (int64_t)sizeof(hl_gemm_word), HL_ALIGN);
    int lengths = s->is_grad ? (int)HL_RECURRENCE_GRAD_LENGTHS : (int)HL_RECURRENCE_LENGTHS;
    return (call){.s = s,
                  .args = args,
                  .outs = args + s->n_in,
                  .lengths = args[lengths],
                  .packed = launch->scratch,
                  .rows = s->by_units ? shared + packed_bytes : own + s->gemm_bytes,
                  .gemm = own,
                  .n_first = n_first};
}

/* One that is out of range, which init_rows says, counts as 0. */
static int64_t find_length(const call *c, int64_t n)
{
    return c->lengths[n] >= 0 && c->lengths[n] <= c->s->r.T ? c->lengths[n] : 0;
}

static bool is_any_valid(const call *c, const part *p, int64_t t)
{
    for (int64_t n = p->n0; n < p->n1; n++)
        if (t < find_length(c, n)) return true;
    return false;
}

/* Columns of a product with n of them. */
static int64_t first_column(const part *p, int64_t n)
{
    return hl_cpu_min(p->p0 * HL_GEMM_PANEL, n);
}
static int64_t end_column(const part *p, int64_t n)
{
    return hl_cpu_min(p->p1 * HL_GEMM_PANEL, n);
}

static ELEMENT *find_state(const call *c, int64_t copy, int64_t n)
{
    const recurrence_state *s = c->s;
    ELEMENT *at = (ELEMENT *)(void *)(c->rows + s->state_at);
    return at + (copy % s->n_copies * s->tile + n - c->n_first) * s->ld_state;
}

static ELEMENT *find_gates(const call *c, int64_t copy, int64_t n)
{
    const recurrence_state *s = c->s;
    ELEMENT *at = (ELEMENT *)(void *)(c->rows + s->gates_at);
    return at + (copy % s->n_copies * s->tile + n - c->n_first) * s->ld_gates;
}

/* What a projection gets: terms forward, backward floats. */
static void *find_full(const call *c, int64_t n)
{
    const recurrence_state *s = c->s;
    size_t bytes = s->is_grad ? sizeof(float) : sizeof(ELEMENT);
    return c->rows + s->full_at + (size_t)((n - c->n_first) * s->ld_full) * bytes;
}

/* Step t of row n of (N,T,K). */
static float *find_step(const call *c, void *over_time, int64_t n, int64_t t, int64_t K)
{
    return (float *)over_time + (n * c->s->r.T + t) * K;
}

/* Where the state before step t lies, or the cell: (N,T,K), and (N,K) before the first step. */
static const float *find_before(const call *c, void *over_time, void *first, int64_t n, int64_t t,
                                int64_t K)
{
    const hl_recurrence *r = &c->s->r;
    if (hl_recurrence_begins(r, t, find_length(c, n))) return (const float *)first + n * K;
    return find_step(c, over_time, n, r->is_reverse ? t + 1 : t - 1, K);
}

/* Rows and columns of a product with weight w. */
static void multiply(const call *c, hl_gemm *product, const packed_weight *w, const part *p)
{
    product->b = c->packed + w->first_word;
    hl_gemm_run(product, 0, p->n1 - p->n0, first_column(p, product->n), end_column(p, product->n),
                c->gemm);
}

/* ---- phase 0: packing ------------------------------------------------------------------------ */

static void pack_panel(const call *c, int64_t panel)
{
    const packed_weight *w = c->s->weights;
    for (; panel >= w->panels; w++) panel -= w->panels;
    hl_gemm_b b = w->b;
    size_t bytes = b.dtype == HL_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    b.at = (const char *)c->args[w->operand] + (size_t)w->offset * bytes;
    hl_gemm_pack(&b, panel, panel + 1, c->packed + w->first_word);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void store_state(const call *c, int64_t copy, int64_t n, int64_t j, hl_v h, int64_t lanes)
{
    store_terms(find_state(c, copy, n) + j, h, lanes);
}

/* All copies of the state are the first one: where a row waits for its first step, they stay so. */
static void init_rows(const call *c, int64_t n0, int64_t n1, const hl_launch *launch)
{
    const hl_recurrence *r = &c->s->r;
    for (int64_t n = n0; n < n1; n++) {
        const float *h0 = (const float *)c->args[HL_RECURRENCE_H0] + n * r->P;
        if (hl_recurrence_refuses(r, c->lengths, n)) hl_launch_fault(launch, n, c->lengths[n]);
        for (int64_t copy = 0; copy < c->s->n_copies; copy++)
            for (int64_t j = 0; j < r->P; j += HL_VL) {
                int64_t lanes = hl_cpu_min(r->P - j, HL_VL);
                store_state(c, copy, n, j, hl_row_load(h0 + j, lanes), lanes);
            }
        if (find_length(c, n)) continue;
        memcpy((float *)c->outs[HL_RECURRENCE_H] + n * r->P, h0, (size_t)r->P * sizeof *h0);
        if (r->c0 >= 0)
            memcpy((float *)c->outs[HL_RECURRENCE_C] + n * r->H,
                   (const float *)c->args[r->c0] + n * r->H, (size_t)r->H * sizeof *h0);
    }
}

/* z of gates [g0, g1) to where they are kept, unless it lies there: then there is one order in
 * which numbers are added. */
static void copy_gates(const call *c, void *kept, int64_t g0, int64_t g1, int64_t t, const part *p)
{
    const hl_recurrence *r = &c->s->r;
    void *z = c->args[HL_RECURRENCE_Z];
    int64_t gates = count_gates(r), n = (g1 - g0) * r->H, j0 = first_column(p, n);
    size_t bytes = (size_t)(end_column(p, n) - j0) * sizeof(float);
    if (kept == z) return;
    for (int64_t row = p->n0; row < p->n1; row++)
        memcpy(find_step(c, kept, row, t, gates) + g0 * r->H + j0,
               find_step(c, z, row, t, gates) + g0 * r->H + j0, bytes);
}

/* Gates [g0, g1) of step t: z, and what the state before it adds; of a GRU's last gate that alone,
 * apart. */
static void sum_gates(const call *c, int64_t g0, int64_t g1, int64_t t, int64_t copy, const part *p)
{
    const recurrence_state *s = c->s;
    const hl_recurrence *r = &s->r;
    hl_gemm product = make_product((g1 - g0) * r->H, r->P, s->ld_state);
    product.a = find_state(c, copy, p->n0);
    if (r->bias >= 0) product.epilogue.bias = (const float *)c->args[r->bias] + g0 * r->H;
    if (r->cell == HL_CELL_GRU && g0 == 2) {
        product.c = find_step(c, c->outs[HL_RECURRENCE_CELLS], p->n0, t, r->H);
        product.ldc = r->T * r->H;
    } else {
        int kept = hl_recurrence_keeps(r) ? (int)HL_RECURRENCE_GATES : (int)HL_RECURRENCE_OUT;
        copy_gates(c, c->outs[kept], g0, g1, t, p);
        product.c = find_step(c, c->outs[kept], p->n0, t, count_gates(r)) + g0 * r->H;
        product.ldc = r->T * count_gates(r);
        product.first = false;
    }
    multiply(c, &product, &s->weights[g0], p);
}

static void sum_all_gates(const call *c, int64_t t, int64_t copy, const part *p)
{
    const hl_recurrence *r = &c->s->r;
    bool is_whole = p->p0 == 0 && p->p1 * HL_GEMM_PANEL == r->H;
    int64_t n_together = r->cell == HL_CELL_GRU ? 2 : r->G;
    part all = *p;
    if (is_whole) {
        all.p1 *= n_together;
        sum_gates(c, 0, n_together, t, copy, &all);
    }
    for (int64_t g = is_whole ? n_together : 0; g < r->G; g++) sum_gates(c, g, g + 1, t, copy, p);
}

/* Where a row of a step's results lies. */
typedef struct row {
    float *out, *gates, *cells, *h, *c; /* h, c: the last ones, NULL before the last step */
    const float *z, *h_before, *c_before;
    ELEMENT *full;
} row;

static row find_row(const call *c, int64_t n, int64_t t)
{
    const hl_recurrence *r = &c->s->r;
    bool ends = hl_recurrence_ends(r, t, find_length(c, n));
    row at = {.out = find_step(c, c->outs[HL_RECURRENCE_OUT], n, t, r->P),
              .z = find_step(c, c->args[HL_RECURRENCE_Z], n, t, count_gates(r))};
    if (ends) at.h = (float *)c->outs[HL_RECURRENCE_H] + n * r->P;
    if (!hl_recurrence_keeps(r)) return at;
    at.gates = find_step(c, c->outs[HL_RECURRENCE_GATES], n, t, count_gates(r));
    at.cells = find_step(c, c->outs[HL_RECURRENCE_CELLS], n, t, r->H);
    if (r->cell == HL_CELL_LSTM) {
        at.c_before = find_before(c, c->outs[HL_RECURRENCE_CELLS], c->args[r->c0], n, t, r->H);
        if (ends) at.c = (float *)c->outs[HL_RECURRENCE_C] + n * r->H;
    } else {
        at.h_before =
            find_before(c, c->outs[HL_RECURRENCE_OUT], c->args[HL_RECURRENCE_H0], n, t, r->P);
    }
    if (r->has_projection) at.full = find_full(c, n);
    return at;
}

HL_SIMD hl_v run_lstm(const hl_recurrence *r, const row *at, int64_t j, int64_t lanes)
{
    float *gate = at->gates + j;
    hl_v i = hl_v_sigmoid(hl_row_load(gate, lanes)),
         f = hl_v_sigmoid(hl_row_load(gate + r->H, lanes)),
         g = hl_v_tanh(hl_row_load(gate + 2 * r->H, lanes)),
         o = hl_v_sigmoid(hl_row_load(gate + 3 * r->H, lanes));
    hl_v c = hl_v_fma(f, hl_row_load(at->c_before + j, lanes), i * g);
    hl_row_store(gate, i, lanes);
    hl_row_store(gate + r->H, f, lanes);
    hl_row_store(gate + 2 * r->H, g, lanes);
    hl_row_store(gate + 3 * r->H, o, lanes);
    hl_row_store(at->cells + j, c, lanes);
    if (at->c) hl_row_store(at->c + j, c, lanes);
    return o * hl_v_tanh(c);
}

HL_SIMD hl_v run_gru(const hl_recurrence *r, const row *at, int64_t j, int64_t lanes)
{
    float *gate = at->gates + j;
    hl_v reset = hl_v_sigmoid(hl_row_load(gate, lanes)),
         update = hl_v_sigmoid(hl_row_load(gate + r->H, lanes));
    hl_v sum = hl_v_fma(reset, hl_row_load(at->cells + j, lanes),
                        hl_row_load(at->z + 2 * r->H + j, lanes));
    hl_v n = hl_v_tanh(sum);
    hl_row_store(gate, reset, lanes);
    hl_row_store(gate + r->H, update, lanes);
    hl_row_store(gate + 2 * r->H, n, lanes);
    return hl_v_fma(update, hl_row_load(at->h_before + j, lanes) - n, n);
}

static void clear(float *x, int64_t j0, int64_t j1)
{
    if (j1 > j0) memset(x + j0, 0, (size_t)(j1 - j0) * sizeof *x);
}

/* Units [j0, j1) of a step that is none of the row's. */
static void skip_row(const hl_recurrence *r, const row *at, int64_t j0, int64_t j1)
{
    if (!r->has_projection) clear(at->out, j0, j1);
    if (!hl_recurrence_keeps(r)) return;
    for (int64_t g = 0; g < r->G; g++) clear(at->gates + g * r->H, j0, j1);
    clear(at->cells, j0, j1);
}

static void run_row(const call *c, int64_t n, int64_t t, int64_t copy, int64_t j0, int64_t j1)
{
    const hl_recurrence *r = &c->s->r;
    row at = find_row(c, n, t);
    if (t >= find_length(c, n)) {
        skip_row(r, &at, j0, j1);
        return;
    }
    for (int64_t j = j0; j < j1; j += HL_VL) {
        int64_t lanes = hl_cpu_min(j1 - j, HL_VL);
        hl_v h;
        if (r->cell == HL_CELL_LSTM)
            h = run_lstm(r, &at, j, lanes);
        else if (r->cell == HL_CELL_GRU)
            h = run_gru(r, &at, j, lanes);
        else if (r->cell == HL_CELL_TANH)
            h = hl_v_tanh(hl_row_load(at.out + j, lanes));
        else
            h = hl_v_relu(hl_row_load(at.out + j, lanes));
        if (at.full) {
            store_terms(at.full + j, h, lanes);
            continue;
        }
        hl_row_store(at.out + j, h, lanes);
        if (at.h) hl_row_store(at.h + j, h, lanes);
        store_state(c, copy + 1, n, j, h, lanes);
    }
}

static void run_cells(const call *c, int64_t step, const part *p)
{
    int64_t t = hl_recurrence_time(&c->s->r, step), H = c->s->r.H;
    if (is_any_valid(c, p, t)) sum_all_gates(c, t, step, p);
    for (int64_t n = p->n0; n < p->n1; n++)
        run_row(c, n, t, step, first_column(p, H), end_column(p, H));
}

static void run_projection(const call *c, int64_t step, const part *p)
{
    const recurrence_state *s = c->s;
    const hl_recurrence *r = &s->r;
    int64_t t = hl_recurrence_time(r, step), j0 = first_column(p, r->P), j1 = end_column(p, r->P);
    hl_gemm product = make_product(r->P, r->H, s->ld_full);
    product.a = find_full(c, p->n0);
    product.c = find_step(c, c->outs[HL_RECURRENCE_OUT], p->n0, t, r->P);
    product.ldc = r->T * r->P;
    if (is_any_valid(c, p, t)) multiply(c, &product, &s->weights[r->G], p);
    for (int64_t n = p->n0; n < p->n1; n++) {
        row at = find_row(c, n, t);
        if (t >= find_length(c, n)) {
            clear(at.out, j0, j1);
            continue;
        }
        for (int64_t j = j0; j < j1; j += HL_VL) {
            int64_t lanes = hl_cpu_min(j1 - j, HL_VL);
            hl_v h = hl_row_load(at.out + j, lanes);
            if (at.h) hl_row_store(at.h + j, h, lanes);
            store_state(c, step + 1, n, j, h, lanes);
        }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

static float *find_dh(const call *c, int64_t n)
{
    return (float *)c->outs[HL_RECURRENCE_GRAD_DH0] + n * c->s->r.P;
}

static void init_grad_rows(const call *c, int64_t n0, int64_t n1)
{
    const hl_recurrence *r = &c->s->r;
    size_t h_bytes = (size_t)((n1 - n0) * r->P) * sizeof(float),
           c_bytes = (size_t)((n1 - n0) * r->H) * sizeof(float);
    memcpy(find_dh(c, n0), (const float *)c->args[HL_RECURRENCE_GRAD_DH] + n0 * r->P, h_bytes);
    if (r->c0 >= 0)
        memcpy((float *)c->outs[HL_RECURRENCE_GRAD_DC0] + n0 * r->H,
               (const float *)c->args[HL_RECURRENCE_GRAD_DC] + n0 * r->H, c_bytes);
}

/* What the gates of the step behind give to the state before it. */
static void sum_states(const call *c, int64_t step, const part *p)
{
    const recurrence_state *s = c->s;
    const hl_recurrence *r = &s->r;
    hl_gemm product = make_product(r->P, count_gates(r), s->ld_gates);
    int64_t behind = step + 1;
    if (behind == r->T || !is_any_valid(c, p, hl_recurrence_time(r, behind))) return;
    product.a = find_gates(c, behind, p->n0);
    product.c = find_dh(c, p->n0);
    product.ldc = r->P;
    product.first = false;
    multiply(c, &product, &s->weights[0], p);
}

/* Of projected states: what they get is theirs alone, and the weight's gradient wants it. */
static void take_states(const call *c, int64_t step, const part *p)
{
    const hl_recurrence *r = &c->s->r;
    int64_t t = hl_recurrence_time(r, step), j0 = first_column(p, r->P), j1 = end_column(p, r->P);
    for (int64_t n = p->n0; n < p->n1; n++) {
        const float *dout = find_step(c, c->args[HL_RECURRENCE_GRAD_DOUT], n, t, r->P);
        float *dh = find_dh(c, n),
              *states = find_step(c, c->outs[HL_RECURRENCE_GRAD_STATES], n, t, r->P);
        bool is_valid = t < find_length(c, n);
        for (int64_t j = j0; j < j1; j += HL_VL) {
            int64_t lanes = hl_cpu_min(j1 - j, HL_VL);
            hl_v d =
                is_valid ? hl_row_load(dh + j, lanes) + hl_row_load(dout + j, lanes) : hl_v_zero();
            hl_row_store(states + j, d, lanes);
            store_state(c, 0, n, j, d, lanes);
            if (is_valid) hl_row_store(dh + j, hl_v_zero(), lanes);
        }
    }
}

static void sum_unprojected(const call *c, int64_t step, const part *p)
{
    const recurrence_state *s = c->s;
    const hl_recurrence *r = &s->r;
    if (!is_any_valid(c, p, hl_recurrence_time(r, step))) return;
    hl_gemm product = make_product(r->H, r->P, s->ld_state);
    product.a = find_state(c, 0, p->n0);
    product.c = find_full(c, p->n0);
    product.ldc = s->ld_full;
    multiply(c, &product, &s->weights[1], p);
}

/* A row of a step: what its states, cells and gates were, and what they get. */
typedef struct grad_row {
    const float *dout, *out, *gates, *cells, *before,
        *full; /* before: the cell, of GRUs the state */
    float *dh, *dc, *dz, *hidden;
    ELEMENT *terms;
} grad_row;

static grad_row find_grad_row(const call *c, int64_t n, int64_t t, int64_t step)
{
    const hl_recurrence *r = &c->s->r;
    int64_t gates = count_gates(r);
    grad_row at = {.dout = find_step(c, c->args[HL_RECURRENCE_GRAD_DOUT], n, t, r->P),
                   .out = find_step(c, c->args[HL_RECURRENCE_GRAD_OUT], n, t, r->P),
                   .dh = find_dh(c, n),
                   .dz = find_step(c, c->outs[HL_RECURRENCE_GRAD_DZ], n, t, gates),
                   .terms = find_gates(c, step, n)};
    if (!hl_recurrence_keeps(r)) return at;
    at.gates = find_step(c, c->args[HL_RECURRENCE_GRAD_GATES], n, t, gates);
    at.cells = find_step(c, c->args[HL_RECURRENCE_GRAD_CELLS], n, t, r->H);
    if (r->cell == HL_CELL_LSTM) {
        at.before = find_before(c, c->args[HL_RECURRENCE_GRAD_CELLS], c->args[r->c0], n, t, r->H);
        at.dc = (float *)c->outs[HL_RECURRENCE_GRAD_DC0] + n * r->H;
    } else {
        at.before = find_before(c, c->args[HL_RECURRENCE_GRAD_OUT], c->args[HL_RECURRENCE_GRAD_H0],
                                n, t, r->P);
        at.hidden = find_step(c, c->outs[HL_RECURRENCE_GRAD_HIDDEN], n, t, gates);
    }
    if (r->has_projection) at.full = find_full(c, n);
    return at;
}

/* d y (1 - y), d (1 - y^2): through a sigmoid, and a tanh, whose result is y. */
HL_SIMD hl_v through_sigmoid(hl_v d, hl_v y)
{
    return d * hl_v_fnma(y, y, y);
}
HL_SIMD hl_v through_tanh(hl_v d, hl_v y)
{
    return d * hl_v_fnma(y, y, hl_v_set1(1));
}

/* What gate g gets, also as terms. */
HL_SIMD void store_gate(const hl_recurrence *r, const grad_row *at, int64_t g, int64_t j, hl_v d,
                        hl_v term, int64_t lanes)
{
    hl_row_store(at->dz + g * r->H + j, d, lanes);
    store_terms(at->terms + g * r->H + j, term, lanes);
}

HL_SIMD void run_lstm_grad(const hl_recurrence *r, const grad_row *at, int64_t j, hl_v dh,
                           int64_t lanes)
{
    const float *gate = at->gates + j;
    hl_v i = hl_row_load(gate, lanes), f = hl_row_load(gate + r->H, lanes),
         g = hl_row_load(gate + 2 * r->H, lanes), o = hl_row_load(gate + 3 * r->H, lanes);
    hl_v top = hl_v_tanh(hl_row_load(at->cells + j, lanes));
    hl_v dc = hl_row_load(at->dc + j, lanes) + through_tanh(dh * o, top);
    hl_v d[4] = {through_sigmoid(dc * g, i),
                 through_sigmoid(dc * hl_row_load(at->before + j, lanes), f),
                 through_tanh(dc * i, g), through_sigmoid(dh * top, o)};
    for (int64_t k = 0; k < 4; k++) store_gate(r, at, k, j, d[k], d[k], lanes);
    hl_row_store(at->dc + j, dc * f, lanes);
}

/* Returns what the state before gets beside the products. */
HL_SIMD hl_v run_gru_grad(const hl_recurrence *r, const grad_row *at, int64_t j, hl_v dh,
                          int64_t lanes)
{
    const float *gate = at->gates + j;
    hl_v reset = hl_row_load(gate, lanes), update = hl_row_load(gate + r->H, lanes),
         n = hl_row_load(gate + 2 * r->H, lanes);
    hl_v d_update = through_sigmoid(dh * (hl_row_load(at->before + j, lanes) - n), update);
    hl_v d_n = through_tanh(hl_v_fnma(dh, update, dh), n);
    hl_v d_reset = through_sigmoid(d_n * hl_row_load(at->cells + j, lanes), reset);
    hl_v product = d_n * reset;
    store_gate(r, at, 0, j, d_reset, d_reset, lanes);
    store_gate(r, at, 1, j, d_update, d_update, lanes);
    store_gate(r, at, 2, j, d_n, product, lanes);
    hl_row_store(at->hidden + j, d_reset, lanes);
    hl_row_store(at->hidden + r->H + j, d_update, lanes);
    hl_row_store(at->hidden + 2 * r->H + j, product, lanes);
    return dh * update;
}

static void skip_grad_row(const hl_recurrence *r, const grad_row *at, int64_t j0, int64_t j1)
{
    for (int64_t g = 0; g < r->G && j1 > j0; g++) {
        clear(at->dz + g * r->H, j0, j1);
        if (at->hidden) clear(at->hidden + g * r->H, j0, j1);
        memset(at->terms + g * r->H + j0, 0, (size_t)(j1 - j0) * sizeof *at->terms);
    }
}

static void run_grad_row(const call *c, int64_t n, int64_t t, int64_t step, int64_t j0, int64_t j1)
{
    const hl_recurrence *r = &c->s->r;
    grad_row at = find_grad_row(c, n, t, step);
    if (t >= find_length(c, n)) {
        skip_grad_row(r, &at, j0, j1);
        return;
    }
    for (int64_t j = j0; j < j1; j += HL_VL) {
        int64_t lanes = hl_cpu_min(j1 - j, HL_VL);
        hl_v kept = hl_v_zero(), dh;
        if (at.full) {
            run_lstm_grad(r, &at, j, hl_row_load(at.full + j, lanes), lanes);
            continue;
        }
        dh = hl_row_load(at.dh + j, lanes) + hl_row_load(at.dout + j, lanes);
        if (r->cell == HL_CELL_LSTM) {
            run_lstm_grad(r, &at, j, dh, lanes);
        } else if (r->cell == HL_CELL_GRU) {
            kept = run_gru_grad(r, &at, j, dh, lanes);
        } else {
            hl_v y = hl_row_load(at.out + j, lanes);
            hl_v d = r->cell == HL_CELL_TANH ? through_tanh(dh, y)
                                             : hl_v_keep(hl_v_gt(y, hl_v_zero()), dh);
            store_gate(r, &at, 0, j, d, d, lanes);
        }
        hl_row_store(at.dh + j, kept, lanes);
    }
}

static void run_cells_grad(const call *c, int64_t step, const part *p)
{
    int64_t t = hl_recurrence_time(&c->s->r, step), H = c->s->r.H;
    if (c->s->r.has_projection) sum_unprojected(c, step, p);
    for (int64_t n = p->n0; n < p->n1; n++)
        run_grad_row(c, n, t, step, first_column(p, H), end_column(p, H));
}

/* ---- phases ---------------------------------------------------------------------------------- */

/* Phases of a step, where it has some of its own. */
static int64_t count_parts(const recurrence_state *s)
{
    return s->r.has_projection ? 2 : 1;
}

/* Part k of a step: forward the cells, then their projection; backward what states get, then
 * cells. Backward step -1 is behind the first one: it sums what the first states get. */
static void run_part(const call *c, int64_t step, int64_t k, const part *p)
{
    const recurrence_state *s = c->s;
    if (!s->is_grad) {
        if (k == 0)
            run_cells(c, step, p);
        else
            run_projection(c, step, p);
        return;
    }
    if (k == 0) sum_states(c, step, p);
    if (step < 0) return;
    if (k == 0 && s->r.has_projection) take_states(c, step, p);
    if (k == count_parts(s) - 1) run_cells_grad(c, step, p);
}

static void run_tile(const call *c, int64_t n1, const hl_launch *launch)
{
    const recurrence_state *s = c->s;
    const part all = {c->n_first, n1, 0, s->n_panels};
    const int64_t T = s->r.T;
    if (s->is_grad)
        init_grad_rows(c, c->n_first, n1);
    else
        init_rows(c, c->n_first, n1, launch);
    for (int64_t i = 0; i < T + s->is_grad; i++)
        for (int64_t k = 0; k < count_parts(s); k++)
            run_part(c, s->is_grad ? T - 1 - i : i, k, &all);
}

static void run_recurrence(const hl_kernel_state *state, void *const *args, int64_t begin,
                           int64_t end, const hl_launch *launch)
{
    const recurrence_state *s = state->impl;
    call c = make_call(s, args, launch, 0);
    if (launch->phase == 0) {
        for (int64_t panel = begin; panel < hl_cpu_min(end, s->n_packed); panel++)
            pack_panel(&c, panel);
        if (s->by_units && begin == 0 && s->is_grad) init_grad_rows(&c, 0, s->r.N);
        if (s->by_units && begin == 0 && !s->is_grad) init_rows(&c, 0, s->r.N, launch);
    } else if (s->by_units) {
        const part all = {0, s->r.N, begin, end};
        int64_t i = (launch->phase - 1) / count_parts(s), k = (launch->phase - 1) % count_parts(s);
        run_part(&c, s->is_grad ? s->r.T - 1 - i : i, k, &all);
    } else {
        for (int64_t tile = begin; tile < end; tile++) {
            c.n_first = tile * s->tile;
            run_tile(&c, hl_cpu_min(c.n_first + s->tile, s->r.N), launch);
        }
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

static bool is_taken(const hl_graph *graph, const hl_node *node, hl_reason *out_why_not)
{
    hl_dtype w = hl_node_in_type(graph, node, HL_RECURRENCE_W)->dtype,
             x = hl_node_in_type(graph, node, 1)->dtype;
    hl_recurrence r = hl_recurrence_of(graph, node);
    if (w != DTYPE || x != HL_DTYPE_F32)
        hl_reason_set(out_why_not, "needs a weight of %s and float32, got %s and %s",
                      hl_dtype_name(DTYPE), hl_dtype_name(w), hl_dtype_name(x));
    else if (r.N * r.T * r.H * r.P == 0)
        hl_reason_set(out_why_not, "needs operands that are not empty");
    else
        return true;
    return false;
}

static hl_status query_recurrence(hl_device *device, const hl_graph *graph, hl_node_id id,
                                  hl_kernel_req *out_req, hl_reason *out_why_not)
{
    const hl_node *node = &graph->nodes[id];
    if (!is_taken(graph, node, out_why_not)) return HL_ERROR_CONFIG;
    recurrence_state s = make_state(device, graph, node);
    const hl_recurrence *r = &s.r;
    double per_step =
        (double)r->N * (double)count_gates(r) * (NS_PER_MAC * (double)r->P + NS_PER_GATE);
    int64_t packed_bytes = hl_round_up(s.words * (int64_t)sizeof(hl_gemm_word), HL_ALIGN);
    int64_t steps = r->T + s.is_grad;
    out_req->rows = s.n_packed;
    out_req->grain = 1;
    out_req->row_cost = 0.2 * (double)(s.words / s.n_packed);
    out_req->scratch_bytes = (size_t)packed_bytes + (s.by_units ? s.rows_bytes : 0);
    out_req->thread_scratch_bytes = s.gemm_bytes + (s.by_units ? 0 : s.rows_bytes);
    out_req->deterministic = true;
    if (s.by_units) {
        out_req->n_phases = (int32_t)(1 + steps * count_parts(&s));
        out_req->phase_rows = s.n_panels;
        out_req->phase_row_cost = per_step / (double)s.n_panels;
    } else {
        out_req->n_phases = 2;
        out_req->phase_rows = s.n_tiles;
        out_req->phase_row_cost = per_step * (double)r->T / (double)s.n_tiles;
    }
    if (s.is_grad) return HL_OK;
    int kept = hl_recurrence_keeps(r) ? HL_RECURRENCE_GATES : HL_RECURRENCE_OUT;
    out_req->in_place[kept] = 1u << HL_RECURRENCE_Z;
    return HL_OK;
}

static hl_status prepare_recurrence(hl_device *device, const hl_graph *graph, hl_node_id id,
                                    hl_kernel_state *out_state)
{
    recurrence_state s = make_state(device, graph, &graph->nodes[id]);
    return hl_cpu_give_state(&s, sizeof s, out_state);
}

static const hl_kernel recurrence = {.op = HL_OP_RECURRENCE,
                                     .name = KERNEL("recurrence"),
                                     .query = query_recurrence,
                                     .prepare = prepare_recurrence,
                                     .block = run_recurrence};
static const hl_kernel gradient = {.op = HL_OP_RECURRENCE_GRAD,
                                   .name = KERNEL("recurrence_grad"),
                                   .query = query_recurrence,
                                   .prepare = prepare_recurrence,
                                   .block = run_recurrence};

const hl_kernel *const KERNELS[] = {&recurrence, &gradient, NULL};
