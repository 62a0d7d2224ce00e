/* Statistics of channels on the emulated GPU against the reference: one strip of channels and
 * several, masks, wild numbers, nothing to count; two launches. */
#include "tests/c/stat_cases.h"
#include "tests/cuda/device_case.h"

static void test_launches(void)
{
    int64_t before = hl_fake_calls("cuLaunchKernel");
    check_statistics(HL_DTYPE_F32, 700, 70, HALF, true, false);
    CHECK_INT((hl_fake_calls("cuLaunchKernel") - before) / 2, 2); /* alone, and captured */
}

int main(void)
{
    static const int64_t channels[] = {1, 2, 4, 7, 16, 33, 50};
    static const int64_t rows[] = {1, 255, 257, 600};
    case_open();
    test_statistics(channels, sizeof channels / sizeof channels[0], rows,
                    sizeof rows / sizeof rows[0]);
    for (int form = 0; form < STAT_FORMS; form++) {
        check_statistics_form(HL_DTYPE_F32, 300, 65, form);
        check_statistics_form(HL_DTYPE_BF16, 40, 131, form);
    }
    test_no_statistics();
    test_launches();
    case_close();
    return CHECK_DONE();
}
