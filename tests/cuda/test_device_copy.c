/* Copies and indexed access on the emulated GPU against the reference, with operands that lie
 * aligned and not; and which kernel adds when. */
#include "tests/c/copy_cases.h"
#include "tests/cuda/device_case.h"

int main(void)
{
    case_open();
    for (case_shift = 0; case_shift <= 8; case_shift += 8) test_copies();
    case_shift = 0;
    test_indexed();
    case_shift = 8, case_deterministic = true;
    test_indexed();
    case_close();
    return CHECK_DONE();
}
