/* Attention to sampled places on the emulated GPU against the reference: the cases of the CPU, in
 * several orders of threads with the same bits. */
#include "tests/c/deformable_cases.h"
#include "tests/cuda/device_case.h"

int main(void)
{
    case_open();
    test_deformable();
    case_close();
    return CHECK_DONE();
}
