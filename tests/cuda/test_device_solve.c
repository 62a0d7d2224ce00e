/* Cholesky factors, triangular systems and connectionist temporal classification on the emulated
 * GPU against the reference: the cases of the CPU, and a panel that shared memory has no room
 * for. */
#include "tests/c/solve_cases.h"
#include "tests/cuda/device_case.h"

int main(void)
{
    case_open();
    test_cholesky(0);
    test_solve();
    test_ctc();
    case_close();
    return CHECK_DONE();
}
