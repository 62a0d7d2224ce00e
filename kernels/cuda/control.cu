/* Control block and guarded updates. The transitions are ir/control.h's own functions, run by one
 * thread; an update leaves its state's bits alone when its segment's guard is down.
 *
 * Launch: transitions one block of one thread; updates any grid, any threads. is_apply says which
 * segment's guard holds. */
#include "kernels/cuda/any.h"

HL_KERNEL(hl_cuda_control_begin, 32, hl_control *control, const double *tables, int64_t n_scalars,
          int64_t n_steps, int is_f64)
{
    hl_control_begin(control, tables, n_scalars, n_steps, is_f64 != 0);
}
HL_KERNEL(hl_cuda_control_micro, 32, hl_control *control, const void *loss, int32_t loss_dtype,
          int64_t rows)
{
    hl_control_micro(control, hl_read_any(loss, loss_dtype, 0), rows);
}
HL_KERNEL(hl_cuda_control_apply, 32, hl_control *control, const void *sumsq, int32_t sumsq_dtype)
{
    hl_control_apply(control, hl_read_any(sumsq, sumsq_dtype, 0));
}

/* state <- value, of one dtype: words of its size, bit by bit. */
#define ASSIGNS(W, bytes)                                                                          \
    HL_KERNEL(hl_cuda_assign_##bytes, 256, W *state, const W *value, int64_t n,                    \
              const hl_control *control, int is_apply)                                             \
    {                                                                                              \
        if (hl_is_blocked(control, is_apply)) return;                                              \
        HL_FOR_GRID(i, n) state[i] = value[i];                                                     \
    }
ASSIGNS(uint8_t, 1)
ASSIGNS(uint16_t, 2)
ASSIGNS(uint32_t, 4)
ASSIGNS(uint64_t, 8)

/* state <- state + value */
#define SUMS(T, suffix)                                                                            \
    HL_KERNEL(hl_cuda_accumulate_##suffix, 256, float *state, const T *value, int64_t n,           \
              const hl_control *control, int is_apply)                                             \
    {                                                                                              \
        if (hl_is_blocked(control, is_apply)) return;                                              \
        HL_FOR_GRID(i, n) state[i] += hl_read(value, i);                                           \
    }
HL_FLOAT_TYPES(SUMS)

HL_KERNEL(hl_cuda_accumulate_any, 256, void *state, int32_t state_dtype, const void *value,
          int32_t value_dtype, int64_t n, const hl_control *control, int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    bool is_exact = !hl_is_float(state_dtype) && !hl_is_float(value_dtype);
    HL_FOR_GRID(i, n)
    {
        if (is_exact)
            hl_write_int(state, state_dtype, i,
                         (int64_t)((uint64_t)hl_read_int(state, state_dtype, i) +
                                   (uint64_t)hl_read_int(value, value_dtype, i)));
        else
            hl_write_any(state, state_dtype, i,
                         hl_read_any(state, state_dtype, i) + hl_read_any(value, value_dtype, i));
    }
}

/* ramp: min(decay, (1 + n) / (10 + n)) at applied step n */
HL_DEVICE double find_decay(double decay, int ramp, const hl_control *control)
{
    double n = (double)control->applied, ramped = (1 + n) / (10 + n);
    return ramp && ramped < decay ? ramped : decay;
}

/* average <- d average + (1 - d) value */
HL_KERNEL(hl_cuda_ema_f32, 256, float *average, const float *value, int64_t n, double decay,
          int ramp, const hl_control *control, int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    double d = find_decay(decay, ramp, control);
    float keep = (float)d, take = (float)(1 - d);
    HL_FOR_GRID(i, n) average[i] = keep * average[i] + take * value[i];
}

HL_KERNEL(hl_cuda_ema_any, 256, void *average, int32_t average_dtype, const void *value,
          int32_t value_dtype, int64_t n, double decay, int ramp, const hl_control *control,
          int is_apply)
{
    if (hl_is_blocked(control, is_apply)) return;
    double d = find_decay(decay, ramp, control);
    HL_FOR_GRID(i, n)
    hl_write_any(average, average_dtype, i,
                 d * hl_read_any(average, average_dtype, i) +
                     (1 - d) * hl_read_any(value, value_dtype, i));
}

/* A conversion, nothing guarded: batches, casts of weights. */
HL_KERNEL(hl_cuda_convert, 256, void *dst, int32_t dst_dtype, const void *src, int32_t src_dtype,
          int64_t n)
{
    bool is_exact = !hl_is_float(dst_dtype) && !hl_is_float(src_dtype);
    bool is_plain = src_dtype == HL_DTYPE_F32 && hl_is_float(dst_dtype);
    HL_FOR_GRID(i, n)
    {
        if (is_plain)
            hl_write_float(dst, dst_dtype, i, ((const float *)src)[i]);
        else if (is_exact)
            hl_write_int(dst, dst_dtype, i, hl_read_int(src, src_dtype, i));
        else
            hl_write_any(dst, dst_dtype, i, hl_read_any(src, src_dtype, i));
    }
}
