/* The interpreter of pointwise programs, for tile_iterator.h and parts.h.
 *
 * A thread takes an element through the whole program. Its registers are a column of shared memory,
 * for local arrays indexed at run time would go through memory. All threads read the same step at
 * once, so the interpreter's switch never diverges. */
#ifndef HL_CUDA_INTERPRETER_H
#define HL_CUDA_INTERPRETER_H

#include "kernels/cuda/program.h"

/* Steps without operands, for element i; p is what the step reads. */
template <class V>
HL_DEVICE V hl_program_leaf(const hl_cuda_program *program, const hl_cuda_step *step, const void *p,
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
template <class V> HL_DEVICE V hl_program_step(int op, V a, V b, V c, int32_t dtype)
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

/* R is shared memory as HL_SHARED_DYNAMIC has it, with a column of n_regs for each thread. */
template <class V_, class R, int MAX_SUMS> struct hl_interpreted {
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
                reg[step->dst * width + t] =
                    hl_program_leaf<V>(program, step, operand[step->in], i);
                continue;
            }
            V x = reg[step->a * width + t], y = reg[step->b * width + t];
            V z = reg[step->c * width + t];
            reg[step->dst * width + t] = hl_program_step<V>(step->op, x, y, z, step->dtype);
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

#endif
