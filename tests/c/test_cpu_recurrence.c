/* Recurrences and their gradients on the CPU against the reference. */
#include "tests/c/recurrence_cases.h"

#include "tests/c/cpu_case.h"

int main(void)
{
    case_open();
    for (int i = 0; i < N_SIZES * N_KINDS * 2; i++)
        test_recurrence(&all_sizes[i / 2 / N_KINDS], &all_kinds[i / 2 % N_KINDS], i % 2);
    case_close();
    return CHECK_DONE();
}
