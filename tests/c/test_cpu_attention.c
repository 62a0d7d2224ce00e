/* Attention on the CPU against the reference. */
#include "tests/c/attention_cases.h"
#include "tests/c/cpu_case.h"

int main(void)
{
    case_open();
    test_all_attention(1);
    case_close();
    return CHECK_DONE();
}
