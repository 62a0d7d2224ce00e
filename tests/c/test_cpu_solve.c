/* Cholesky factors, triangular systems and connectionist temporal classification on the CPU
 * against the reference. */
#include "tests/c/cpu_case.h"
#include "tests/c/solve_cases.h"

int main(void)
{
    case_open();
    test_cholesky(150);
    test_solve();
    test_ctc();
    case_close();
    return CHECK_DONE();
}
