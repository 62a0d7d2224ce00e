/* Attention to sampled places on the CPU against the reference (deformable_cases.h). */
#include "tests/c/cpu_case.h"
#include "tests/c/deformable_cases.h"

int main(void)
{
    case_open();
    test_deformable();
    case_close();
    return CHECK_DONE();
}
