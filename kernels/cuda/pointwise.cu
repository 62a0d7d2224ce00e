/* Pointwise programs, interpreted: the plain kernel of every pointwise op, for machines without
 * NVRTC, and the one whose bits generated kernels have; and the kernels that merge partial sums.
 *
 * A thread takes an element through the whole program. Its registers are a column of dynamic shared
 * memory, for local arrays indexed at run time would go through memory. All threads read the same
 * step at once, so the interpreter's switch never diverges.
 *
 * Launch: as tile_iterator.h says, of several programs as parts.h does; shared memory n_regs *
 * threads * the type's size. The type is hl_program_kind's. */
#include "kernels/cuda/program.h"

/* Steps without operands, for element i; p is what the step reads. */
template <class V>
HL_DEVICE V run_leaf(const hl_cuda_program *program, const hl_cuda_step *step, const void *p,
                     int64_t i)
{
    if (step->op == HL_PW_NUMBER) return (V)step->number;
    if (step->op == HL_PW_LOAD) {
        const hl_cuda_layout &at = program->in[step->in].at;
        int64_t from = program->in[step->in].is_whole ? i : hl_layout_offset(at, i);
        return hl_memory<V>::read(p, program->in[step->in].dtype, from);
    }
    uint32_t bits[1];
    int64_t size = program->sample_size, element;
    int64_t sample = hl_divide(i, size, hl_is_short(i | size), &element);
    hl_draw<1>(p, step->key[0], step->key[1], sample, element, bits);
    if (step->op == HL_PW_UNIFORM) return hl_uniform<V>(bits[0]);
    return bits[0] < step->threshold ? (V)0 : (V)step->number;
}

/* No program of integers has a FLOAT op. */
template <class V> HL_DEVICE V run_step(int op, V a, V b, V c, int32_t dtype)
{
#define STEP_1(id)        hl_pw_##id<V>(a)
#define STEP_2(id)        hl_pw_##id<V>(a, b)
#define STEP_3(id)        hl_pw_##id<V>(a, b, c)
#define STEP_ANY(call)    return call;
#define STEP_NUMBER(call) return call;
#define STEP_FIRST(call)  return call;
#define STEP_CHOSEN(call) return call;
#define STEP_BOOL(call)   return call;
#define STEP_FLOAT(call)                                                                           \
    if constexpr (hl_pw_math<V>::IS_REAL)                                                          \
        return call;                                                                               \
    else                                                                                           \
        return a;
    switch (op) {
#define HL_PW(id, name, n, result, ...)                                                            \
    case HL_PW_##id: STEP_##result(STEP_##n(id))
#define HL_PW_CAST(id, ...)                                                                        \
    case HL_PW_##id: return hl_pw_##id<V>(a, dtype);
#include "ir/pointwise.def"
    default: return a;
    }
}

/* R is shared memory as HL_SHARED_DYNAMIC has it. */
template <class V_, class R, int MAX_SUMS> struct interpreted {
    typedef V_ V;
    enum { WIDTH = HL_CUDA_TILE_WIDTH, SUMS = MAX_SUMS, UNROLL = 1 };
    const hl_cuda_program *program;
    void *const *operand;
    R &reg;
    int n_width;

    HL_MEMBER int width() const
    {
        return n_width;
    }
    HL_MEMBER int n_sums() const
    {
        return program->n_sums;
    }
    HL_MEMBER int reduce(int s) const
    {
        return program->out[program->sum_out[s]].reduce;
    }
    HL_MEMBER bool is_aligned() const
    {
        return false;
    }
    template <int W> HL_MEMBER void take(int64_t i, V (*sum)[WIDTH]) const
    {
        int t = hl_thread(), width = hl_threads(), s = 0;
        for (int c = 0; c < program->n_code; c++) {
            const hl_cuda_step *step = &program->code[c];
            if (step->op <= HL_PW_UNIFORM) {
                reg[step->dst * width + t] = run_leaf<V>(program, step, operand[step->in], i);
                continue;
            }
            V x = reg[step->a * width + t], y = reg[step->b * width + t];
            V z = reg[step->c * width + t];
            reg[step->dst * width + t] = run_step<V>(step->op, x, y, z, step->dtype);
        }
        for (int j = 0; j < program->n_out; j++) {
            V value = reg[program->out[j].reg * width + t];
            if (program->out[j].reduce)
                sum[s++][0] = value;
            else
                hl_memory<V>::write(operand[program->n_in + j], program->out[j].dtype, i, value);
        }
    }
    HL_MEMBER void put(int s, int64_t at, V value) const
    {
        int j = program->sum_out[s];
        hl_memory<V>::write(operand[program->n_in + j], program->out[j].dtype, at, value);
    }
};
template <class V, class R> HL_DEVICE void interpret(const hl_cuda_pointwise_params &p, R &reg)
{
    typedef interpreted<V, R, HL_CUDA_TILE_SUMS> P;
    hl_iterate_tiles(P{p.at.program, p.at.operand, reg, p.tiles.width}, p.tiles, (V *)p.at.scratch);
}
/* Part by part; a thread takes one element at a time, neighbours by neighbours. */
template <class V, class R>
HL_DEVICE void interpret_part(const hl_cuda_pointwise_parts_params &p, R &reg)
{
    typedef interpreted<V, R, 0> P;
    int block = hl_block_x(), part = hl_part_find(p.parts, block);
    hl_part_iterate(P{p.at.programs + part, p.at.operand + p.parts.first_operand[part], reg, 1},
                    p.parts, part, block);
}

template <class V_> struct merged {
    typedef V_ V;
    enum { WIDTH = 1, SUMS = 1, UNROLL = 1 };
    const V *from;
    void *to;
    int32_t to_dtype, how;

    HL_MEMBER int width() const
    {
        return 1;
    }
    HL_MEMBER int n_sums() const
    {
        return 1;
    }
    HL_MEMBER int reduce(int) const
    {
        return how;
    }
    HL_MEMBER bool is_aligned() const
    {
        return true;
    }
    template <int W> HL_MEMBER void take(int64_t i, V (*sum)[WIDTH]) const
    {
        sum[0][0] = from[i];
    }
    HL_MEMBER void put(int, int64_t at, V value) const
    {
        hl_memory<V>::write(to, to_dtype, at, value);
    }
};

#define KERNELS(V, suffix)                                                                         \
    HL_CUDA_ENTRY_OF(pointwise, suffix, HL_CUDA_TILE_THREADS, p)                                   \
    {                                                                                              \
        HL_SHARED_DYNAMIC(V, reg);                                                                 \
        interpret<V>(p, reg);                                                                      \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(pointwise_parts, suffix, HL_CUDA_TILE_THREADS, p)                             \
    {                                                                                              \
        HL_SHARED_DYNAMIC(V, reg);                                                                 \
        interpret_part<V>(p, reg);                                                                 \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(pointwise_merge, suffix, HL_CUDA_TILE_THREADS, p)                             \
    {                                                                                              \
        hl_iterate_tiles(merged<V>{(const V *)p.at.from, p.at.to, p.to_dtype, p.how}, p.tiles,     \
                         (V *)0);                                                                  \
    }
KERNELS(float, f32)
KERNELS(double, f64)
KERNELS(int64_t, i64)
