/* Pointwise programs, interpreted: the plain kernel of every pointwise op, for machines without
 * NVRTC, and the one whose bits generated kernels have; and the kernels that merge partial sums.
 *
 * Launch: as tile_iterator.h says, of several programs as parts.h does; shared memory n_regs *
 * threads * the type's size. The type is hl_program_kind's. */
#include "kernels/cuda/interpreter.h"

template <class V, class R> HL_DEVICE void interpret(const hl_cuda_pointwise_params &p, R &reg)
{
    typedef hl_interpreted<V, R, HL_CUDA_TILE_SUMS> P;
    hl_iterate_tiles(P{p.at.program, p.at.operand, reg, p.tiles.width}, p.tiles, (V *)p.at.scratch);
}
/* Part by part; a thread takes one element at a time, neighbours by neighbours. */
template <class V, class R>
HL_DEVICE void interpret_part(const hl_cuda_pointwise_parts_params &p, R &reg)
{
    typedef hl_interpreted<V, R, 0> P;
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
