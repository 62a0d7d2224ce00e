/* What generated kernels use of the C library's headers, for NVRTC, which has none: each of their
 * names stands for this text (headers.c). Functions of <math.h> are the compiler's own. */
#ifndef HL_CUDA_RTC_H
#define HL_CUDA_RTC_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;

#define INT32_MAX 2147483647
#define INT64_MAX 0x7FFFFFFFFFFFFFFFLL
#define INT64_MIN (-INT64_MAX - 1)

#endif
