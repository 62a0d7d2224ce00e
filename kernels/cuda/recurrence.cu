/* Recurrences over all steps of time in one launch (ir/recurrence.h), forward and backward.
 *
 * Rows of a batch need nothing of one another, so a block takes a few rows through all of time, and
 * no block waits for another. It multiplies by w_hh at every step, and reading w_hh is what a step
 * takes: the block keeps it in shared memory where it fits, else every step reads it from the L2
 * cache. recurrence.c decides from the sizes whether that is less than the launches of the form
 * step by step.
 *
 * Products are transposed, units times rows: with tensor cores 16 units, of each gate one tile,
 * times 8 rows. So a block may have as few as 8 rows, and a thread has all gates of its units and
 * rows: it makes the state from its own sums, keeps the cell for itself, and what threads exchange
 * are the states alone, in 16 bits forward, or the gates' gradients backward. They lie in two
 * copies, one that products read and one that is written, so that a step has one barrier. The
 * weight is packed as lanes read it, 16 bytes each, in the order of the products, whose terms are
 * the columns of w_hh forward and its rows backward; missing units and terms are zeros.
 *
 * Sums, functions and states are float32; products of 16 bits round states and the gates' gradients
 * to the weight's type, as the form step by step does. float32 is multiplied in plain fp32. What
 * lies over time is float32 or the weight's type, which is known at launch: a thread loads its
 * words of the next step before the products of this one, as bits, and converts them when it needs
 * them.
 *
 * The sums' order depends on nothing but the sizes: neither on the rows of a tile nor on where the
 * weight lies.
 *
 * Rejected: units shared by several blocks (a barrier of the whole grid, or of a cluster, at each
 * step: it would hold larger w_hh in several multiprocessors' memory; a first GPU may say whether
 * that pays), the weight in registers (fixed sizes of H), exchange of gates through shared memory
 * (a second barrier), a projection of the state (a second product and barrier at each step).
 *
 * Launch: a block for each tile of rows; a warp for each group of units, at most WARPS of them;
 * shared memory as recurrence.h measures it, without the weight where it is not resident. */
#include "kernels/cuda/recurrence.h"

#include "kernels/cuda/fault.h"

/* ---- tiles ----------------------------------------------------------------------------------- */

/* What the kernels ask of a kind of tiles. A thread has HELD sums of a product: of ROWS_HELD rows
 * and UNITS_HELD units, sum at(r, u) of row(r) and, in its group, of unit(u).
 *     UNITS, TERMS    of a group; of a product at once
 *     place           which unit and term of a step element e of a lane's packed word is
 *     put             element k of a row of what products multiply by
 *     multiply        sums of n products, whose words of a group lie at `weight` */
template <class T, int N_ROWS> struct tensor_tiles {
    typedef T type;
    enum {
        ROWS = N_ROWS,
        TILES = ROWS / 8,
        UNITS = HL_CUDA_RECURRENCE_UNITS(true),
        TERMS = HL_CUDA_RECURRENCE_TERMS(true),
        ELEMENTS = 8,
        ROWS_HELD = 2 * TILES,
        UNITS_HELD = 2,
        HELD = ROWS_HELD * UNITS_HELD
    };
    /* What a lane multiplies by in a step, of all rows. */
    struct alignas(8 * TILES) operand {
        uint32_t v[TILES][2];
    };

    static HL_MEMBER int row(int r)
    {
        return r / 2 * 8 + hl_thread() % 4 * 2 + r % 2;
    }
    static HL_MEMBER int unit(int u)
    {
        return hl_thread() % 32 / 4 + 8 * u;
    }
    static HL_MEMBER int at(int r, int u)
    {
        return r / 2 * 4 + u * 2 + r % 2;
    }
    static HL_MEMBER void place(int lane, int e, int *out_unit, int *out_term)
    {
        *out_unit = lane / 4 + e / 2 % 2 * 8;
        *out_term = lane % 4 * 2 + e / 4 * 8 + e % 2;
    }
    static HL_MEMBER void put(T *to, int k, int row, float x)
    {
        int lane = row % 8 * 4 + k % 8 / 2;
        hl_put(to + ((k / TERMS * 32 + lane) * TILES + row / 8) * 4 + k % 16 / 8 * 2 + k % 2, x);
    }
    /* One product alone has four sums, so that one does not wait for the other. */
    template <int n>
    static HL_MEMBER void multiply(float (&sum)[n][HELD], const hl_word4 *weight, const T *by,
                                   int n_steps)
    {
        enum { PARTS = n > 1 ? 1 : 4 };
        float part[PARTS][n][HELD] = {};
        const hl_word4 *w = weight + hl_thread() % 32;
        const operand *x = (const operand *)(const void *)by + hl_thread() % 32;
        HL_UNROLL_BY(n > 1 ? 4 : 2)
        for (int s = 0; s < n_steps; s += PARTS) {
            HL_UNROLL
            for (int i = 0; i < PARTS; i++)
                if (s + i < n_steps) add(part[i], w + (s + i) * n * 32, x[(s + i) * 32]);
        }
        HL_UNROLL
        for (int g = 0; g < n; g++) {
            HL_UNROLL
            for (int e = 0; e < HELD; e++) {
                if constexpr (PARTS > 1)
                    sum[g][e] = (part[0][g][e] + part[1][g][e]) + (part[2][g][e] + part[3][g][e]);
                else
                    sum[g][e] = part[0][g][e];
            }
        }
    }

  private:
    template <int n>
    static HL_MEMBER void add(float (&sum)[n][HELD], const hl_word4 *weight, const operand &x)
    {
        HL_UNROLL
        for (int g = 0; g < n; g++) {
            hl_word4 word = *hl_vector(weight + g * 32);
            hl_fragment<T> a = {{word.x, word.y, word.z, word.w}};
            HL_UNROLL
            for (int i = 0; i < TILES; i++)
                hl_fragment_mma(sum[g] + 4 * i, a, x.v[i][0], x.v[i][1]);
        }
    }
};

/* float32: a lane has a unit of all rows. */
template <int N_ROWS> struct plain_tiles {
    typedef float type;
    enum {
        ROWS = N_ROWS,
        UNITS = HL_CUDA_RECURRENCE_UNITS(false),
        TERMS = HL_CUDA_RECURRENCE_TERMS(false),
        ELEMENTS = 4,
        ROWS_HELD = ROWS,
        UNITS_HELD = 1,
        HELD = ROWS
    };
    struct alignas(16) terms {
        float v[TERMS];
    };

    static HL_MEMBER int row(int r)
    {
        return r;
    }
    static HL_MEMBER int unit(int)
    {
        return hl_thread() % 32;
    }
    static HL_MEMBER int at(int r, int)
    {
        return r;
    }
    static HL_MEMBER void place(int lane, int e, int *out_unit, int *out_term)
    {
        *out_unit = lane;
        *out_term = e;
    }
    static HL_MEMBER void put(float *to, int k, int row, float x)
    {
        to[(k / TERMS * ROWS + row) * TERMS + k % TERMS] = x;
    }
    template <int n>
    static HL_MEMBER void multiply(float (&sum)[n][HELD], const hl_word4 *weight, const float *by,
                                   int n_steps)
    {
        const terms *w = (const terms *)(const void *)weight + hl_thread() % 32;
        const terms *x = (const terms *)(const void *)by;
        HL_UNROLL
        for (int g = 0; g < n; g++) {
            HL_UNROLL
            for (int r = 0; r < ROWS; r++) sum[g][r] = 0;
        }
        HL_UNROLL_BY(2)
        for (int s = 0; s < n_steps; s++) {
            terms own[n];
            HL_UNROLL
            for (int g = 0; g < n; g++) own[g] = *hl_vector(w + (s * n + g) * 32);
            HL_UNROLL
            for (int r = 0; r < ROWS; r++) {
                terms of_row = *hl_vector(x + s * ROWS + r);
                HL_UNROLL
                for (int g = 0; g < n; g++) {
                    HL_UNROLL
                    for (int k = 0; k < TERMS; k++)
                        sum[g][r] = fmaf(own[g].v[k], of_row.v[k], sum[g][r]);
                }
            }
        }
    }
};

/* ---- weights --------------------------------------------------------------------------------- */

/* A lane's word of a line of the packed weight. There is a line of each group, of each step of
 * terms, of each product. Forward products are those of gates, with columns of w (G H,H) as terms;
 * backward there is one, with its rows as terms, each gate's filled up to whole steps. */
template <class E, int G, bool is_grad>
HL_DEVICE hl_word4 pack_word(const hl_cuda_recurrence &of, const typename E::type *w, unsigned line)
{
    typedef typename E::type T;
    enum { PRODUCTS = is_grad ? 1 : G };
    union {
        T element[E::ELEMENTS];
        hl_word4 word;
    } to;
    unsigned n_steps = (unsigned)of.n_terms / E::TERMS, gate_steps = n_steps / (is_grad ? G : 1);
    unsigned step = line / PRODUCTS % n_steps, group = line / PRODUCTS / n_steps;
    unsigned gate = is_grad ? step / gate_steps : line % PRODUCTS;
    if (is_grad) step %= gate_steps;
    const T *of_gate = w + (int64_t)gate * of.H * of.H;
    HL_UNROLL
    for (int e = 0; e < E::ELEMENTS; e++) {
        int unit, term;
        E::place(hl_thread() % 32, e, &unit, &term);
        unit += (int)group * E::UNITS, term += (int)step * E::TERMS;
        int row = is_grad ? term : unit, column = is_grad ? unit : term;
        T none = {};
        bool is_in = unit < of.H && term < of.H;
        to.element[e] = is_in ? of_gate[(int64_t)row * of.H + column] : none;
    }
    return to.word;
}

/* Lines from `first` on, a line a warp, of which there are `step`; a warp waits for several at
 * once.
 */
template <class E, int G, bool is_grad>
HL_DEVICE void pack(const hl_cuda_recurrence &of, const void *w, void *packed, unsigned first,
                    unsigned step)
{
    enum { AT_ONCE = 4, LINE_BYTES = 32 * HL_CUDA_RECURRENCE_WORD_BYTES };
    hl_cuda_recurrence_room room =
        hl_cuda_recurrence_measure(&of, is_grad ? 1 : G, sizeof(typename E::type) == 2, 1);
    unsigned n_lines = (unsigned)(room.weight / LINE_BYTES);
    hl_word4 *to = (hl_word4 *)packed + hl_thread() % 32;
    for (unsigned line = first; line < n_lines; line += AT_ONCE * step) {
        hl_word4 word[AT_ONCE];
        HL_UNROLL
        for (unsigned k = 0; k < AT_ONCE; k++)
            if (line + k * step < n_lines)
                word[k] =
                    pack_word<E, G, is_grad>(of, (const typename E::type *)w, line + k * step);
        HL_UNROLL
        for (unsigned k = 0; k < AT_ONCE; k++)
            if (line + k * step < n_lines)
                *hl_vector(to + (int64_t)(line + k * step) * 32) = word[k];
    }
}

/* ---- what lies over time --------------------------------------------------------------------- */

/* Float32, or of the 16 bits of T. A word is an element's bits: it need not be there yet. */
template <class T>
HL_DEVICE uint32_t load_word(const hl_cuda_recurrence &of, const void *p, int64_t i)
{
    if constexpr (sizeof(T) == 2)
        if (of.is_narrow) return ((const T *)p)[i].bits;
    return ((const uint32_t *)p)[i];
}
template <class T> HL_DEVICE float read_word(const hl_cuda_recurrence &of, uint32_t word)
{
    if constexpr (sizeof(T) == 2)
        if (of.is_narrow) return hl_to_float(T{(uint16_t)word});
    return hl_bits_float(word);
}
template <class T>
HL_DEVICE void write_element(const hl_cuda_recurrence &of, void *p, int64_t i, float x)
{
    if constexpr (sizeof(T) == 2) {
        if (of.is_narrow) {
            hl_write((T *)p, i, x);
            return;
        }
    }
    ((float *)p)[i] = x;
}
template <class T>
HL_DEVICE float read_element(const hl_cuda_recurrence &of, const void *p, int64_t i)
{
    return read_word<T>(of, load_word<T>(of, p, i));
}

/* ---- a block --------------------------------------------------------------------------------- */

/* Its rows begin at `first`. Units of a group that are beyond H, and rows beyond N, which have
 * length -1, are multiplied and not written. */
template <class E> struct tile {
    typedef typename E::type T;
    const hl_cuda_recurrence &of;
    int64_t first;
    int warps, warp;
    int longest;              /* of the rows' lengths */
    int length[E::ROWS_HELD]; /* of this thread's */
    const hl_word4 *weight;
    T *operand; /* two, one behind the other */
    int64_t operand_elements, group_words;
    float *state;

    /* Of element e of the thread's q-th group in the k-th array of states. */
    HL_MEMBER float *find_state(int k, int q, int e) const
    {
        int turns = (of.n_groups + warps - 1) / warps;
        return state + ((k * turns + q / warps) * E::HELD + e) * hl_threads() + hl_thread();
    }
    HL_MEMBER int unit(int q, int u) const
    {
        return q * E::UNITS + E::unit(u);
    }
    HL_MEMBER int64_t row(int r) const
    {
        return first + E::row(r);
    }
    /* Element j at step t of row r, of (N,T,K). */
    HL_MEMBER int64_t at(int r, int64_t t, int64_t K, int64_t j) const
    {
        return (row(r) * of.T + t) * K + j;
    }
    HL_MEMBER int64_t time(int64_t i) const
    {
        return of.is_reverse ? of.T - 1 - i : i;
    }
    /* fn(r, u, element, unit) of what this thread has of group q and of the batch. */
    template <class F> HL_MEMBER void each(int q, F fn) const
    {
        HL_UNROLL
        for (int r = 0; r < E::ROWS_HELD; r++) {
            HL_UNROLL
            for (int u = 0; u < E::UNITS_HELD; u++)
                if (length[r] >= 0 && unit(q, u) < of.H) fn(r, u, E::at(r, u), unit(q, u));
        }
    }
    template <class F> HL_MEMBER void each_group(F fn) const
    {
        for (int q = warp; q < of.n_groups; q += warps) fn(q);
    }
    template <int n> HL_MEMBER void multiply(int q, int copy, float (&sum)[n][E::HELD]) const
    {
        E::multiply(sum, weight + q * group_words, operand + copy * operand_elements,
                    of.n_terms / E::TERMS);
    }
};

/* Reads the lengths, of which those that are out of range count as 0; clears what products multiply
 * by; packs the weight where it stays. All of it is there behind the next barrier. */
template <class E, int G, bool is_grad, class P>
HL_DEVICE tile<E> begin(const P &p, unsigned char *shared, int32_t *lengths)
{
    typedef typename E::type T;
    const hl_cuda_recurrence &of = p.of;
    enum { PRODUCTS = is_grad ? 1 : G };
    hl_cuda_recurrence_room room =
        hl_cuda_recurrence_measure(&of, PRODUCTS, sizeof(T) == 2, E::ROWS);
    unsigned char *behind = shared + (of.is_resident ? room.weight : 0);
    tile<E> b = {of,
                 (int64_t)hl_block_x() * E::ROWS,
                 hl_threads() / 32,
                 hl_thread() / 32,
                 0,
                 {},
                 (const hl_word4 *)p.at.w,
                 (T *)(void *)behind,
                 room.operand / (int64_t)sizeof(T),
                 (int64_t)of.n_terms / E::TERMS * PRODUCTS * 32,
                 (float *)(void *)(behind + 2 * room.operand)};
    if (hl_thread() < E::ROWS) {
        int64_t n = b.first + hl_thread();
        int32_t length = -1;
        if (n < of.N) {
            length = p.at.lengths[n];
            bool is_in = length >= 0 && length <= of.T;
            if (!is_in || (of.is_sorted && n > 0 && length > p.at.lengths[n - 1]))
                hl_fault_set(p.at.control, p.at.fault, n, length);
            if (!is_in) length = 0;
        }
        lengths[hl_thread()] = length;
    }
    for (int64_t i = hl_thread(); i < 2 * b.operand_elements; i += hl_threads())
        hl_put(b.operand + i, 0);
    if (of.is_resident)
        pack<E, G, is_grad>(of, p.at.w, shared, (unsigned)b.warp, (unsigned)b.warps);
    hl_barrier();
    HL_UNROLL
    for (int r = 0; r < E::ROWS_HELD; r++) b.length[r] = lengths[E::row(r)];
    for (int r = 0; r < E::ROWS; r++)
        if (lengths[r] > b.longest) b.longest = lengths[r];
    return b;
}

HL_DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* ---- forward --------------------------------------------------------------------------------- */

template <class E, int G> struct gate_words {
    uint32_t v[G][E::HELD];
};

template <class E, int G>
HL_DEVICE void load_gates(const tile<E> &b, const void *z, int64_t t, int q, gate_words<E, G> &to)
{
    b.each(q, [&](int r, int, int e, int j) {
        if (t >= b.length[r]) return;
        HL_UNROLL
        for (int g = 0; g < G; g++)
            to.v[g][e] = load_word<typename E::type>(
                b.of, z, b.at(r, t, (int64_t)G * b.of.H, g * (int64_t)b.of.H + j));
    });
}

/* A unit's step: its state, of what the input has given the gates (z) and the products. `state` is
 * a cell, or a GRU's state before; `z` become the gates, `kept` what is kept beside. */
template <int G>
HL_DEVICE float run_cell(float (&z)[G], const float (&product)[G], float state, int is_relu,
                         float *kept)
{
    if constexpr (G == 1) {
        float sum = z[0] + product[0];
        if (!is_relu) return tanhf(sum);
        return sum > 0 || sum != sum ? sum : 0.0f;
    } else if constexpr (G == 3) {
        z[0] = sigmoid(z[0] + product[0]);
        z[1] = sigmoid(z[1] + product[1]);
        z[2] = tanhf(fmaf(z[0], product[2], z[2]));
        *kept = product[2];
        return fmaf(z[1], state - z[2], z[2]);
    } else {
        z[0] = sigmoid(z[0] + product[0]);
        z[1] = sigmoid(z[1] + product[1]);
        z[2] = tanhf(z[2] + product[2]);
        z[3] = sigmoid(z[3] + product[3]);
        *kept = fmaf(z[1], state, z[0] * z[2]);
        return z[3] * tanhf(*kept);
    }
}

/* Step t of what a thread has of group q: `words` are its z, next to the products with the state
 * that lies in the copy before. */
template <class E, int G>
HL_DEVICE void run_group(const hl_cuda_recurrence_params &p, const tile<E> &b, int64_t t, int q,
                         bool is_any, int copy, const gate_words<E, G> &words)
{
    typedef typename E::type T;
    const hl_cuda_recurrence &of = p.of;
    float sum[G][E::HELD];
    T *next = b.operand + (copy ^ 1) * b.operand_elements;
    if (is_any) b.multiply(q, copy, sum);
    b.each(q, [&](int r, int, int e, int j) {
        int64_t H = of.H, gates = b.at(r, t, G * H, j), one = b.at(r, t, H, j);
        bool is_valid = t < b.length[r];
        float z[G], product[G], kept = 0, h = 0;
        HL_UNROLL
        for (int g = 0; g < G; g++) z[g] = 0;
        if (is_valid) {
            float *state = b.find_state(0, q, e);
            HL_UNROLL
            for (int g = 0; g < G; g++) {
                z[g] = read_word<T>(of, words.v[g][e]);
                product[g] = sum[g][e];
                if (G == 3 && p.at.bias) product[g] += read_element<T>(of, p.at.bias, g * H + j);
            }
            h = run_cell<G>(z, product, G > 1 ? *state : 0.0f, of.is_relu, &kept);
            if (G > 1) *state = G == 4 ? kept : h;
            E::put(next, j, E::row(r), h);
            if (t == (of.is_reverse ? 0 : b.length[r] - 1)) {
                write_element<T>(of, p.at.h, b.row(r) * H + j, h);
                if (G == 4) write_element<T>(of, p.at.c, b.row(r) * H + j, kept);
            }
        }
        write_element<T>(of, p.at.out, one, h);
        if (G == 1) return;
        write_element<T>(of, p.at.cells, one, kept);
        HL_UNROLL
        for (int g = 0; g < G; g++) write_element<T>(of, p.at.gates, gates + g * H, z[g]);
    });
}

template <class E, int G>
HL_DEVICE void run(const hl_cuda_recurrence_params &p, unsigned char *shared, int32_t *lengths)
{
    typedef typename E::type T;
    const hl_cuda_recurrence &of = p.of;
    tile<E> b = begin<E, G, false>(p, shared, lengths);
    /* Both copies are the first state: where a row waits for its first step, they stay so. */
    b.each_group([&](int q) {
        b.each(q, [&](int r, int, int e, int j) {
            int64_t i = b.row(r) * of.H + j;
            float h = read_element<T>(of, p.at.h0, i),
                  c = G == 4 ? read_element<T>(of, p.at.c0, i) : 0.0f;
            E::put(b.operand, j, E::row(r), h);
            E::put(b.operand + b.operand_elements, j, E::row(r), h);
            if (G > 1) *b.find_state(0, q, e) = G == 4 ? c : h;
            if (b.length[r] > 0) return;
            write_element<T>(of, p.at.h, i, h);
            if (G == 4) write_element<T>(of, p.at.c, i, c);
        });
    });
    hl_barrier();
    if (of.is_resident) b.weight = (const hl_word4 *)(const void *)shared;
    gate_words<E, G> next = {};
    int copy = 0;
    load_gates<E, G>(b, p.at.z, b.time(0), b.warp, next);
    for (int64_t i = 0; i < of.T; i++) {
        bool is_any = b.time(i) < b.longest;
        b.each_group([&](int q) {
            gate_words<E, G> words = next;
            bool is_last = q + b.warps >= of.n_groups;
            if (!is_last || i + 1 < of.T)
                load_gates<E, G>(b, p.at.z, b.time(is_last ? i + 1 : i),
                                 is_last ? b.warp : q + b.warps, next);
            run_group<E, G>(p, b, b.time(i), q, is_any, copy, words);
        });
        if (!is_any) continue;
        copy ^= 1;
        hl_barrier();
    }
}

/* ---- gradient -------------------------------------------------------------------------------- */

/* What a step's gradient reads of an element: dout, the gates (of an RNN its state), what was kept
 * beside them and what the step began with: an LSTM's cell, a GRU's state. */
template <int G> struct grad_inputs {
    enum { DOUT, GATES, KEPT = GATES + G, BEFORE, COUNT = G == 1 ? 2 : G + 3 };
};

template <class E, int G> struct grad_words {
    uint32_t v[grad_inputs<G>::COUNT][E::HELD];
};

template <class E, int G>
HL_DEVICE void load_grad(const hl_cuda_recurrence_grad_params &p, const tile<E> &b, int64_t t,
                         int q, grad_words<E, G> &to)
{
    typedef typename E::type T;
    typedef grad_inputs<G> in;
    const hl_cuda_recurrence &of = p.of;
    b.each(q, [&](int r, int, int e, int j) {
        if (t >= b.length[r]) return;
        int64_t H = of.H, one = b.at(r, t, H, j), gates = b.at(r, t, G * H, j);
        to.v[in::DOUT][e] = load_word<T>(of, p.at.dout, one);
        if constexpr (G == 1) {
            to.v[in::GATES][e] = load_word<T>(of, p.at.out, one);
        } else {
            const void *over_time = G == 4 ? p.at.cells : p.at.out;
            const void *first = G == 4 ? p.at.c0 : p.at.h0;
            bool begins = t == (of.is_reverse ? b.length[r] - 1 : 0);
            HL_UNROLL
            for (int g = 0; g < G; g++)
                to.v[in::GATES + g][e] = load_word<T>(of, p.at.gates, gates + g * H);
            to.v[in::KEPT][e] = load_word<T>(of, p.at.cells, one);
            to.v[in::BEFORE][e] =
                begins ? load_word<T>(of, first, b.row(r) * H + j)
                       : load_word<T>(of, over_time, of.is_reverse ? one + H : one - H);
        }
    });
}

/* d y (1 - y), d (1 - y^2): through a sigmoid, and a tanh, whose result is y. */
HL_DEVICE float through_sigmoid(float d, float y)
{
    return d * fmaf(-y, y, y);
}
HL_DEVICE float through_tanh(float d, float y)
{
    return d * fmaf(-y, y, 1.0f);
}

/* What the gates of a unit get, of what its state gets, dh; in `hidden` what its products with the
 * state before get. *dc: of an LSTM's cell behind the step, then before it. Returns what the state
 * before gets beside the products. */
template <int G>
HL_DEVICE float run_cell_grad(const float *x, float dh, int is_relu, float *dc, float (&dz)[G],
                              float (&hidden)[G])
{
    typedef grad_inputs<G> in;
    const float *y = x + in::GATES;
    float kept = 0;
    if constexpr (G == 1) {
        dz[0] = !is_relu ? through_tanh(dh, y[0]) : y[0] > 0 ? dh : 0.0f;
    } else if constexpr (G == 3) {
        dz[1] = through_sigmoid(dh * (x[in::BEFORE] - y[2]), y[1]);
        dz[2] = through_tanh(fmaf(-dh, y[1], dh), y[2]);
        dz[0] = through_sigmoid(dz[2] * x[in::KEPT], y[0]);
        kept = dh * y[1];
    } else {
        float top = tanhf(x[in::KEPT]), of_cell = *dc + through_tanh(dh * y[3], top);
        dz[0] = through_sigmoid(of_cell * y[2], y[0]);
        dz[1] = through_sigmoid(of_cell * x[in::BEFORE], y[1]);
        dz[2] = through_tanh(of_cell * y[0], y[2]);
        dz[3] = through_sigmoid(dh * top, y[3]);
        *dc = of_cell * y[1];
    }
    HL_UNROLL
    for (int g = 0; g < G; g++) hidden[g] = G == 3 && g == 2 ? dz[2] * y[0] : dz[g];
    return kept;
}

/* Arrays of states: what the state gets, and an LSTM's cell. */
enum { OF_STATE, OF_CELL };

template <class E, int G>
HL_DEVICE void run_group_grad(const hl_cuda_recurrence_grad_params &p, const tile<E> &b, int64_t t,
                              int q, int copy, const grad_words<E, G> &words)
{
    typedef typename E::type T;
    typedef grad_inputs<G> in;
    const hl_cuda_recurrence &of = p.of;
    T *operand = b.operand + copy * b.operand_elements;
    b.each(q, [&](int r, int, int e, int j) {
        int64_t H = of.H, gates = b.at(r, t, G * H, j);
        float dz[G], hidden[G];
        HL_UNROLL
        for (int g = 0; g < G; g++) dz[g] = hidden[g] = 0;
        if (t < b.length[r]) {
            float x[in::COUNT], none = 0;
            float *dh = b.find_state(OF_STATE, q, e);
            HL_UNROLL
            for (int k = 0; k < in::COUNT; k++) x[k] = read_word<T>(of, words.v[k][e]);
            *dh = run_cell_grad<G>(x, *dh + x[in::DOUT], of.is_relu,
                                   G == 4 ? b.find_state(OF_CELL, q, e) : &none, dz, hidden);
            HL_UNROLL
            for (int g = 0; g < G; g++)
                E::put(operand, g * (of.n_terms / G) + j, E::row(r), hidden[g]);
        }
        HL_UNROLL
        for (int g = 0; g < G; g++) {
            write_element<T>(of, p.at.dz, gates + g * H, dz[g]);
            if (G == 3) write_element<T>(of, p.at.hidden, gates + g * H, hidden[g]);
        }
    });
}

template <class E, int G>
HL_DEVICE void run_grad(const hl_cuda_recurrence_grad_params &p, unsigned char *shared,
                        int32_t *lengths)
{
    typedef typename E::type T;
    const hl_cuda_recurrence &of = p.of;
    tile<E> b = begin<E, G, true>(p, shared, lengths);
    if (of.is_resident) b.weight = (const hl_word4 *)(const void *)shared;
    b.each_group([&](int q) {
        b.each(q, [&](int r, int, int e, int j) {
            int64_t i = b.row(r) * of.H + j;
            *b.find_state(OF_STATE, q, e) = read_element<T>(of, p.at.dh, i);
            if (G == 4) *b.find_state(OF_CELL, q, e) = read_element<T>(of, p.at.dc, i);
        });
    });
    grad_words<E, G> next = {};
    int copy = 0;
    load_grad<E, G>(p, b, b.time(of.T - 1), b.warp, next);
    for (int64_t i = of.T - 1; i >= 0; i--) {
        int64_t t = b.time(i);
        b.each_group([&](int q) {
            grad_words<E, G> words = next;
            bool is_last = q + b.warps >= of.n_groups;
            if (!is_last || i > 0)
                load_grad<E, G>(p, b, is_last ? b.time(i - 1) : t, is_last ? b.warp : q + b.warps,
                                next);
            run_group_grad<E, G>(p, b, t, q, copy, words);
        });
        if (t >= b.longest) continue;
        hl_barrier();
        b.each_group([&](int q) {
            float sum[1][E::HELD];
            b.multiply(q, copy, sum);
            b.each(q, [&](int r, int, int e, int) {
                if (t < b.length[r]) *b.find_state(OF_STATE, q, e) += sum[0][e];
            });
        });
        copy ^= 1;
    }
    b.each_group([&](int q) {
        b.each(q, [&](int r, int, int e, int j) {
            int64_t i = b.row(r) * of.H + j;
            write_element<T>(of, p.at.dh0, i, *b.find_state(OF_STATE, q, e));
            if (G == 4) write_element<T>(of, p.at.dc0, i, *b.find_state(OF_CELL, q, e));
        });
    });
}

/* ---- kernels --------------------------------------------------------------------------------- */

#define THREADS(E) (32 * HL_CUDA_RECURRENCE_WARPS(sizeof(E::type) == 2, E::ROWS))
#define KERNEL(kind, variant, fn, E, G)                                                            \
    HL_CUDA_ENTRY_OF(kind, variant, THREADS(E), p)                                                 \
    {                                                                                              \
        HL_SHARED_DYNAMIC(unsigned char, shared);                                                  \
        HL_SHARED(int32_t, lengths, E::ROWS);                                                      \
        fn<E, G>(p, shared, lengths);                                                              \
    }
#define BOTH(variant, E, G)                                                                        \
    KERNEL(recurrence, variant, run, E, G)                                                         \
    KERNEL(recurrence_grad, variant, run_grad, E, G)
#define OF_GATES(G, suffix, FEW, MANY)                                                             \
    BOTH(suffix##_##G##_few, FEW, G)                                                               \
    BOTH(suffix##_##G##_many, MANY, G)
#define OF_TYPE(suffix, FEW, MANY)                                                                 \
    HL_CUDA_ENTRY_OF(recurrence_pack, suffix, HL_CUDA_ELEMENT_THREADS, p)                          \
    {                                                                                              \
        pack_all<FEW>(p);                                                                          \
    }                                                                                              \
    HL_CUDA_RECURRENCE_GATES(OF_GATES, suffix, FEW, MANY)

template <class E> HL_DEVICE void pack_all(const hl_cuda_recurrence_pack_params &p)
{
    unsigned warp = (unsigned)(HL_GRID_FIRST / 32), warps = (unsigned)(HL_GRID_STEP / 32);
#define PACK(gates, ignored)                                                                       \
    if (p.G == gates && p.is_grad) pack<E, gates, true>(p.of, p.at.w, p.at.packed, warp, warps);   \
    if (p.G == gates && !p.is_grad) pack<E, gates, false>(p.of, p.at.w, p.at.packed, warp, warps);
    HL_CUDA_RECURRENCE_GATES(PACK, )
#undef PACK
}

typedef plain_tiles<HL_CUDA_RECURRENCE_FEW(false)> few_f32;
typedef plain_tiles<HL_CUDA_RECURRENCE_MANY(false)> many_f32;
typedef tensor_tiles<hl_bf16, HL_CUDA_RECURRENCE_FEW(true)> few_bf16;
typedef tensor_tiles<hl_bf16, HL_CUDA_RECURRENCE_MANY(true)> many_bf16;
typedef tensor_tiles<hl_f16, HL_CUDA_RECURRENCE_FEW(true)> few_f16;
typedef tensor_tiles<hl_f16, HL_CUDA_RECURRENCE_MANY(true)> many_f16;
OF_TYPE(f32, few_f32, many_f32)
OF_TYPE(bf16, few_bf16, many_bf16)
OF_TYPE(f16, few_f16, many_f16)
