/* Operating system services; the implementations are os_linux.c alone. */
#ifndef HL_BASE_OS_H
#define HL_BASE_OS_H

#include <stdbool.h>

#include "base/status.h"

int64_t hl_os_time_ns(void);     /* monotonic */
int hl_os_cpu_count(void);       /* usable: affinity and cgroup quota, at least 1 */
int64_t hl_os_process_id(void);

/* Mutex and condition that survive a fork in the child (the lint test forbids pthread elsewhere). */
typedef struct hl_mutex hl_mutex;
typedef struct hl_cond hl_cond;
hl_status hl_mutex_create(HL_GIVE hl_mutex **out_mutex);
void hl_mutex_destroy(HL_TAKE hl_mutex *mutex);
void hl_mutex_lock(hl_mutex *mutex);
void hl_mutex_unlock(hl_mutex *mutex);
hl_status hl_cond_create(HL_GIVE hl_cond **out_cond);
void hl_cond_destroy(HL_TAKE hl_cond *cond);
void hl_cond_wait(hl_cond *cond, hl_mutex *mutex);
/* false when timeout_ns passed. */
bool hl_cond_wait_for(hl_cond *cond, hl_mutex *mutex, int64_t timeout_ns);
void hl_cond_broadcast(hl_cond *cond);

/* Instruction sets the CPU and the operating system offer. */
typedef struct hl_os_cpu {
    char name[64];
    bool avx2;        /* with fma and f16c */
    bool avx512;      /* f, bw, dq, vl */
    bool avx512_bf16;
} hl_os_cpu;
void hl_os_cpu_read(hl_os_cpu *out_cpu);

#endif
