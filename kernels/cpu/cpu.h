/* The CPU backend: fp32, vectorised, on every core, one source per family compiled for several
 * instruction sets. kernels/ref is its oracle. */
#ifndef HL_KERNELS_CPU_CPU_H
#define HL_KERNELS_CPU_CPU_H

#include "backend/backend.h"

const hl_backend *hl_cpu_backend(void);

#endif
