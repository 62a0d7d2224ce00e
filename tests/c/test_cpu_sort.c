/* Sorting and searching on the CPU against the reference: rows that are ranked, sorted by digits,
 * and selected from; every instruction set. */
#include "tests/c/cpu_case.h"
#include "tests/c/sort_cases.h"

int main(void)
{
    static const int64_t widths[] = {1, 2, 15, 16, 17, 63, 64, 65, 200, 700};
    case_open();
    test_sort_widths(widths, sizeof widths / sizeof widths[0], 3);
    /* Digits of 11 bits, and few of them. */
    check_sort(HL_DTYPE_F32, 1, 9000, 9000, false, WITH_NAN);
    check_sort(HL_DTYPE_BF16, 1, 8200, 8200, true, TIED);
    /* As many candidates as there is room for, again and again. */
    for (int f = 0; f < SORT_FILLS; f++) {
        check_sort(HL_DTYPE_F32, 2, 4000, 7, f % 2, (enum sort_fill)f);
        check_sort(HL_DTYPE_F64, 1, 4000, 300, f % 2, (enum sort_fill)f);
        check_sort(HL_DTYPE_I64, 1, 4000, 150, f % 2, (enum sort_fill)f);
    }
    check_sort(HL_DTYPE_F32, 2, 4000, 7, true, RISING);
    check_sort(HL_DTYPE_F64, 2, 4000, 60, true, RISING);
    test_nothing_to_sort();
    test_search();
    case_close();
    return CHECK_DONE();
}
