/* Attention on the CPU against the reference. */
#include "tests/c/attention_cases.h"
#include "tests/c/cpu_case.h"

int main(void)
{
    case_open();
    test_all_attention();
    case_close();
    return CHECK_DONE();
}
