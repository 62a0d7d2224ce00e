/* Copies and indexed access on the CPU against the reference. */
#include "tests/c/copy_cases.h"
#include "tests/c/cpu_case.h"

int main(void)
{
    case_open();
    test_copies();
    test_indexed();
    case_close();
    return CHECK_DONE();
}
