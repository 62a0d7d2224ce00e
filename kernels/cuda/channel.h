/* What a batch norm and its gradient do to every element of a channel, made once a channel by the
 * launch that ends its statistics or its sums. */
#ifndef HL_CUDA_CHANNEL_H
#define HL_CUDA_CHANNEL_H

#include "kernels/cuda/params.h"

/* y = (x - mean) scale + shift; of the gradient dx = scale (g - shift - (x - mean) slope). */
#ifdef __cplusplus
struct alignas(16) hl_cuda_channel {
    float mean, scale, shift, slope;
};
#else
typedef struct hl_cuda_channel {
    float mean, scale, shift, slope;
} hl_cuda_channel;
#endif

/* out NULL: nothing is to be made. bias: not of the gradient. */
typedef struct hl_cuda_channel_at {
    HL_CUDA_AT(const float) weight;
    HL_CUDA_AT(const float) bias;
    HL_CUDA_AT(hl_cuda_channel) out;
} hl_cuda_channel_at;

#if defined(__CUDACC__) || defined(HL_EMULATE)
/* By a channel's statistics. */
HL_DEVICE void hl_channel_put(const hl_cuda_channel_at &at, int64_t c, float mean, float var,
                              float eps)
{
    if (at.out)
        at.out[c] = hl_cuda_channel{mean, hl_rsqrt(var + eps) * at.weight[c], at.bias[c], 0};
}
/* By the sums of the gradient over n elements. */
HL_DEVICE void hl_channel_put_grad(const hl_cuda_channel_at &at, int64_t c, float mean, float rstd,
                                   float dweight, float dbias, float n)
{
    at.out[c] = hl_cuda_channel{mean, at.weight[c] * rstd, dbias / n, rstd * (dweight / n)};
}
#endif

#endif
