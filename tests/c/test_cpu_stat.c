/* Statistics of channels on the CPU against the reference: panels that are full and that are not,
 * parts of rows, tiles of every width and height, in every instruction set. */
#include "tests/c/cpu_case.h"
#include "tests/c/stat_cases.h"

int main(void)
{
    static const int64_t channels[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                       13, 14, 15, 16, 17, 23, 24, 25, 31, 33, 50, 61};
    static const int64_t rows[] = {1, 2, 63, 64, 65, 127, 129, 255, 256, 257, 1000};
    case_open();
    test_statistics(channels, sizeof channels / sizeof channels[0], rows,
                    sizeof rows / sizeof rows[0]);
    /* Columns whose tiles are split unevenly; parts of more than the least rows. */
    for (int64_t C = 97; C < 106; C++) check_statistics_form(HL_DTYPE_F32, 70, C, 1);
    check_statistics_form(HL_DTYPE_F32, 20011, 3, 5);
    check_statistics_form(HL_DTYPE_BF16, 17000, 1, 0);
    test_no_statistics();
    case_close();
    return CHECK_DONE();
}
