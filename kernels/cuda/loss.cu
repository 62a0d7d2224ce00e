/* Cross-entropy of integer targets from logits (N,C), and its gradient: the formulas of
 * kernels/ref/loss.c. A target that is no class is a fault; its row and ignored rows give 0 and
 * weigh 0.
 *
 * A cooperative group holds its row in registers (fold.h), so memory is read once, smoothed or not.
 *
 * Launch: any grid; threads a multiple of 32. */
#include "kernels/cuda/loss.h"

#define KERNELS(keep, T, suffix)                                                                   \
    HL_CUDA_ENTRY_OF(cross_entropy, suffix##_x##keep, HL_CUDA_COOP_THREADS, p)                     \
    {                                                                                              \
        hl_loss_run<T, keep>(p);                                                                   \
    }                                                                                              \
    HL_CUDA_ENTRY_OF(cross_entropy_grad, suffix##_x##keep, HL_CUDA_COOP_THREADS, p)                \
    {                                                                                              \
        hl_loss_run_gradient<T, keep>(p);                                                          \
    }
#define BY_KEEP(T, suffix) HL_CUDA_ROW_KEEPS(KERNELS, T, suffix)
HL_FLOAT_TYPES(BY_KEEP)
