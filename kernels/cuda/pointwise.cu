/* Pointwise programs, interpreted: the plain kernel of every pointwise op, for machines without
 * NVRTC, and the one that generated kernels are compared with.
 *
 * A thread takes an element through the whole program. Its registers are a column of dynamic shared
 * memory, for local arrays indexed at run time would go through memory. All threads read the same
 * step at once, so the interpreter's switch never diverges. Outputs are stored in full: programs
 * with sums are for generated kernels, and query refuses them here.
 *
 * Launch: any grid, any threads; shared memory n_regs * threads * the type's size, so threads are
 * chosen to stay within 48 KiB. The type: int64 for programs of integers alone, float64 where an
 * operand of more than one element or a result is float64, else float32. */
#include "kernels/cuda/micro.h"
#include "kernels/cuda/philox.h"
#include "kernels/cuda/program.h"

template <class V> struct memory_of {
    static HL_MEMBER V load(const void *p, int32_t dtype, int64_t i)
    {
        return dtype == HL_DTYPE_F32 ? (V)((const float *)p)[i] : (V)hl_read_any(p, dtype, i);
    }
    static HL_MEMBER void store(void *p, int32_t dtype, int64_t i, V value)
    {
        if (dtype == HL_DTYPE_F32)
            ((float *)p)[i] = (float)value;
        else
            hl_write_any(p, dtype, i, (double)value);
    }
};
template <> struct memory_of<int64_t> {
    static HL_MEMBER int64_t load(const void *p, int32_t dtype, int64_t i)
    {
        return hl_read_int(p, dtype, i);
    }
    static HL_MEMBER void store(void *p, int32_t dtype, int64_t i, int64_t value)
    {
        hl_write_int(p, dtype, i, value);
    }
};

/* Steps without operands, for element i. */
template <class V>
HL_DEVICE V run_leaf(const hl_cuda_program *program, const hl_cuda_step *step,
                     const hl_cuda_operands &operands, int64_t i)
{
    const void *p = operands.p[step->in];
    if (step->op == HL_PW_NUMBER) return (V)step->number;
    if (step->op == HL_PW_LOAD) {
        const hl_cuda_layout &at = program->in[step->in].at;
        int64_t from = program->in[step->in].is_whole ? i : hl_layout_offset(at, i);
        return memory_of<V>::load(p, program->in[step->in].dtype, from);
    }
    const hl_control *control = (const hl_control *)p;
    int64_t sample = i / program->sample_size, element = i % program->sample_size;
    hl_word4 words =
        hl_philox_block(step->key[0], step->key[1], (uint32_t)control->attempted,
                        (uint64_t)(control->micro_row + sample), (uint64_t)element >> 3);
    uint32_t bits = hl_philox_bits16(words, (int)(element & 7));
    if (step->op == HL_PW_UNIFORM) return (V)(((double)bits + 0.5) / 65536);
    return bits < step->threshold ? (V)0 : (V)step->number;
}

template <class V> HL_DEVICE V run_step(int op, V a, V b, V c, int32_t dtype)
{
#define CALL_0(op)    return a;
#define CALL_1(op)    return hl_pw_##op(a);
#define CALL_2(op)    return hl_pw_##op(a, b);
#define CALL_3(op)    return hl_pw_##op(a, b, c);
#define hl_pw_CAST(x) hl_pw_CAST(x, dtype)
#define X(op, n_operands)                                                                          \
    case HL_PW_##op: CALL_##n_operands(op)
    switch (op) {
        HL_PW_OPS(X)
    default: return a;
    }
#undef X
#undef hl_pw_CAST
}

template <class V>
HL_DEVICE void interpret(const hl_cuda_program *program, const hl_cuda_operands &operands)
{
    HL_SHARED_DYNAMIC(V, reg);
    int t = hl_thread(), width = hl_threads();
    HL_FOR_GRID(i, program->n)
    {
        for (int s = 0; s < program->n_code; s++) {
            const hl_cuda_step *step = &program->code[s];
            if (step->op <= HL_PW_UNIFORM) {
                reg[step->dst * width + t] = run_leaf<V>(program, step, operands, i);
                continue;
            }
            V a = reg[step->a * width + t], b = reg[step->b * width + t];
            V c = reg[step->c * width + t];
            reg[step->dst * width + t] = run_step<V>(step->op, a, b, c, step->dtype);
        }
        for (int j = 0; j < program->n_out; j++)
            memory_of<V>::store(operands.p[program->n_in + j], program->out[j].dtype, i,
                                reg[program->out[j].reg * width + t]);
    }
}

HL_KERNEL(hl_cuda_pointwise_f32, 256, const hl_cuda_program *program, hl_cuda_operands operands)
{
    interpret<float>(program, operands);
}
HL_KERNEL(hl_cuda_pointwise_f64, 256, const hl_cuda_program *program, hl_cuda_operands operands)
{
    interpret<double>(program, operands);
}
HL_KERNEL(hl_cuda_pointwise_i64, 256, const hl_cuda_program *program, hl_cuda_operands operands)
{
    interpret<int64_t>(program, operands);
}
