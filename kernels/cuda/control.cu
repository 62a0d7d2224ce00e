/* Control block and guarded updates. The transitions are ir/control.h's own functions, run by one
 * thread; an update leaves its state's bits alone when its segment's guard is down. A model has
 * many small states that change at the end of a step; all of them are one launch.
 *
 * Launch: transitions one block of one thread; updates any grid, any threads, a row of blocks an
 * update and more. is_apply says which segment's guard holds. */
#include "kernels/cuda/control.h"

#include "kernels/cuda/tile_iterator.h"

HL_CUDA_ENTRY(control_begin, HL_CUDA_CONTROL_THREADS, p)
{
    hl_control_run(p);
}
HL_CUDA_ENTRY(control_micro, HL_CUDA_CONTROL_THREADS, p)
{
    hl_control_run(p);
}
HL_CUDA_ENTRY(control_apply, HL_CUDA_CONTROL_THREADS, p)
{
    hl_control_run(p);
}

/* ---- updates --------------------------------------------------------------------------------- */

/* run<W>(at) for W elements from at on: vectors where memory allows it, then one by one. */
template <int W, class Update> HL_DEVICE void for_packs(const Update &update, int64_t n)
{
    int64_t n_packs = update.is_aligned() ? n / W : 0;
    HL_FOR_GRID(i, n_packs) update.template run<W>(i * W);
    HL_FOR_GRID(i, n - n_packs * W) update.template run<1>(n_packs * W + i);
}

/* state <- value, of one dtype: 16 bytes at a time, bit by bit. */
template <int DTYPE> struct assigning {
    enum { WIDTH = 16 / sizeof(typename hl_element<DTYPE>::type) };
    void *state;
    const void *value;

    HL_MEMBER bool is_aligned() const
    {
        return hl_pack_of<DTYPE, WIDTH>::is_aligned(state) &&
               hl_pack_of<DTYPE, WIDTH>::is_aligned(value);
    }
    template <int W> HL_MEMBER void run(int64_t at) const
    {
        typedef typename hl_element<DTYPE>::type T;
        typedef typename hl_pack_of<DTYPE, W>::pack pack;
        *hl_vector((pack *)((T *)state + at)) = *hl_vector((const pack *)((const T *)value + at));
    }
};
template <int DTYPE> HL_DEVICE void assign(void *state, const void *value, int64_t n)
{
    for_packs<assigning<DTYPE>::WIDTH>(assigning<DTYPE>{state, value}, n);
}
HL_DEVICE void assign_words(void *state, const void *value, int32_t dtype, int64_t n)
{
    switch (dtype) {
    case HL_DTYPE_F64:
    case HL_DTYPE_I64: assign<HL_DTYPE_I64>(state, value, n); break;
    case HL_DTYPE_F32:
    case HL_DTYPE_I32: assign<HL_DTYPE_I32>(state, value, n); break;
    case HL_DTYPE_BF16:
    case HL_DTYPE_F16:
    case HL_DTYPE_I16: assign<HL_DTYPE_I16>(state, value, n); break;
    default: assign<HL_DTYPE_U8>(state, value, n); break;
    }
}

/* state <- value, rounded from float32. */
enum { FLOATS = 4 };
template <int DTYPE> struct rounding {
    void *state;
    const void *value;

    HL_MEMBER bool is_aligned() const
    {
        return hl_pack_of<DTYPE, FLOATS>::is_aligned(state) &&
               hl_pack_of<HL_DTYPE_F32, FLOATS>::is_aligned(value);
    }
    template <int W> HL_MEMBER void run(int64_t at) const
    {
        float v[W];
        hl_load_pack<HL_DTYPE_F32, W>(value, at, v);
        hl_store_pack<DTYPE, W>(state, at, v);
    }
};
HL_DEVICE bool is_exact(int32_t dtype, int32_t other)
{
    return !hl_is_float(dtype) && !hl_is_float(other);
}
/* state <- value, in the state's dtype */
HL_DEVICE void assign_any(void *state, int32_t state_dtype, const void *value, int32_t value_dtype,
                          int64_t n)
{
    int32_t narrow = value_dtype == HL_DTYPE_F32 ? state_dtype : HL_DTYPE_F64;
    if (state_dtype == value_dtype)
        assign_words(state, value, state_dtype, n);
    else if (narrow == HL_DTYPE_BF16)
        for_packs<FLOATS>(rounding<HL_DTYPE_BF16>{state, value}, n);
    else if (narrow == HL_DTYPE_F16)
        for_packs<FLOATS>(rounding<HL_DTYPE_F16>{state, value}, n);
    else if (is_exact(state_dtype, value_dtype))
        HL_FOR_GRID(i, n) hl_write_int(state, state_dtype, i, hl_read_int(value, value_dtype, i));
    else
        HL_FOR_GRID(i, n) hl_write_any(state, state_dtype, i, hl_read_any(value, value_dtype, i));
}

/* state <- keep state + take value, of float32. 1 times a number is the number: a sum is exact. */
template <int VALUE> struct blending {
    float *state;
    const void *value;
    float keep, take;

    HL_MEMBER bool is_aligned() const
    {
        return hl_pack_of<HL_DTYPE_F32, FLOATS>::is_aligned(state) &&
               hl_pack_of<VALUE, FLOATS>::is_aligned(value);
    }
    template <int W> HL_MEMBER void run(int64_t at) const
    {
        float s[W], v[W];
        hl_load_pack<HL_DTYPE_F32, W>(state, at, s);
        hl_load_pack<VALUE, W>(value, at, v);
        HL_UNROLL
        for (int k = 0; k < W; k++) s[k] = keep * s[k] + take * v[k];
        hl_store_pack<HL_DTYPE_F32, W>(state, at, s);
    }
};
template <int VALUE>
HL_DEVICE void blend(void *state, const void *value, int64_t n, float keep, float take)
{
    for_packs<FLOATS>(blending<VALUE>{(float *)state, value, keep, take}, n);
}

/* state <- state + value */
HL_DEVICE void add_any(void *state, int32_t state_dtype, const void *value, int32_t value_dtype,
                       int64_t n)
{
    bool exact = is_exact(state_dtype, value_dtype);
    HL_FOR_GRID(i, n)
    {
        if (exact)
            hl_write_int(state, state_dtype, i,
                         (int64_t)((uint64_t)hl_read_int(state, state_dtype, i) +
                                   (uint64_t)hl_read_int(value, value_dtype, i)));
        else
            hl_write_any(state, state_dtype, i,
                         hl_read_any(state, state_dtype, i) + hl_read_any(value, value_dtype, i));
    }
}
HL_DEVICE void accumulate(void *state, int32_t state_dtype, const void *value, int32_t value_dtype,
                          int64_t n)
{
    int32_t narrow = state_dtype == HL_DTYPE_F32 ? value_dtype : HL_DTYPE_F64;
    switch (narrow) {
    case HL_DTYPE_F32: blend<HL_DTYPE_F32>(state, value, n, 1, 1); break;
    case HL_DTYPE_BF16: blend<HL_DTYPE_BF16>(state, value, n, 1, 1); break;
    case HL_DTYPE_F16: blend<HL_DTYPE_F16>(state, value, n, 1, 1); break;
    default: add_any(state, state_dtype, value, value_dtype, n); break;
    }
}

/* ramp: min(decay, (1 + n) / (10 + n)) at optimizer step n */
HL_DEVICE double find_decay(double decay, int ramp, const hl_control *control)
{
    double n = (double)control->applied, ramped = (1 + n) / (10 + n);
    return ramp && ramped < decay ? ramped : decay;
}

/* state <- d state + take value; take 0: 1 - d */
HL_DEVICE void average(void *state, int32_t state_dtype, const void *value, int32_t value_dtype,
                       int64_t n, double d, double take)
{
    take = take != 0 ? take : 1 - d;
    if (state_dtype == HL_DTYPE_F32 && value_dtype == HL_DTYPE_F32) {
        blend<HL_DTYPE_F32>(state, value, n, (float)d, (float)take);
        return;
    }
    HL_FOR_GRID(i, n)
    hl_write_any(state, state_dtype, i,
                 d * hl_read_any(state, state_dtype, i) +
                     take * hl_read_any(value, value_dtype, i));
}

/* Updates independent states, each by a row of the grid, under one guard. */
HL_CUDA_ENTRY(update_states, HL_CUDA_ELEMENT_THREADS, p)
{
    if (hl_is_blocked(p.at.control, p.is_apply)) return;
    for (int u = hl_block_y(); u < p.n_updates; u += hl_blocks_y()) {
        void *state = p.at.operand[HL_CUDA_UPDATE_ARGS * u];
        const void *value = p.at.operand[HL_CUDA_UPDATE_ARGS * u + 1];
        hl_cuda_update what = p.of[u];
        if (what.kind == HL_CUDA_ASSIGN)
            assign_any(state, what.state_dtype, value, what.value_dtype, what.n);
        else if (what.kind == HL_CUDA_ACCUMULATE)
            accumulate(state, what.state_dtype, value, what.value_dtype, what.n);
        else
            average(state, what.state_dtype, value, what.value_dtype, what.n,
                    find_decay(what.decay, what.ramp, p.at.control), what.take);
    }
}
