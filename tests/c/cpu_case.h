/* One node run on the CPU backend and on the reference backend, and compared.
 *
 * The CPU runs a case (case.h) several times, its rows cut differently each time, with thread
 * scratch spoiled before every block: all runs must give the same bits. One more run holds the
 * kernel to what it says of rows: a block sees only its part of every operand it calls row-wise,
 * the rest is spoiled, and may change only its part of such results. Compiled per instruction set;
 * the device is opened for that set. */
#ifndef TESTS_C_CPU_CASE_H
#define TESTS_C_CPU_CASE_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kernel.h"
#include "tests/c/case.h"

static hl_device *case_cpu;

__attribute__((unused)) static void case_open(void)
{
    hl_device_options options = {.n_threads = 1, .isa = HL_CPU_TEXT(HL_ISA)};
    CHECK_OK(hl_cpu_backend()->device_open(hl_cpu_backend(), 0, &options, &case_cpu));
    CHECK_OK(hl_ref_backend()->device_open(hl_ref_backend(), 0, &options, &case_ref));
    CHECK(strstr(case_cpu->name, HL_CPU_TEXT(HL_ISA)) != NULL);
}

__attribute__((unused)) static void case_close(void)
{
    case_cpu->ops->destroy(case_cpu);
    case_ref->ops->destroy(case_ref);
}

/* Everything the head of this file promises, for one case; then frees the case's memory. */
__attribute__((unused)) static void case_check(op_case *c)
{
    static const int64_t cuts[] = {1, 2, 3, 1000000000};
    unsigned char *first[CASE_MAX] = {NULL};
    hl_kernel_req req = {0}, ignored;
    bool runs = case_run_once(c, case_cpu, cuts[0], CASE_APART, first, &req);
    int n_ways = c->is_guarded ? 4 : 5 + case_over(0, c->n_out);
    for (int v = 1; runs && v < n_ways; v++) {
        int way = v < 4 ? CASE_APART : v == 4 ? CASE_BY_ROWS : v - 5;
        if (way >= 0 && !hl_kernel_takes_place(&req, way % CASE_MAX, way / CASE_MAX)) continue;
        unsigned char *again[CASE_MAX] = {NULL};
        case_run_once(c, case_cpu, cuts[v < 4 ? v : 1], way, again, &ignored);
        for (int j = 0; j < c->n_out; j++) {
            if (first[j] && memcmp(first[j], again[j], case_bytes(&c->out[j])) != 0) {
                check_fail(__FILE__, __LINE__, "output %d: other bits, run %d, way %d", j, v, way);
            }
            free(again[j]);
        }
    }
    if (runs && !c->allows_any && case_run_once(c, case_ref, 1, CASE_APART, NULL, &ignored)) {
        case_compare(c);
    }
    for (int j = 0; j < CASE_MAX; j++) free(first[j]);
    case_forget(c);
}

#endif
