"""Mutants of sorting and searching."""

from mutants.mutant import Mutant, c, cuda, host, python

_CPU, _CUDA = "kernels/cpu/sort.c", "kernels/cuda/sort"
_API = "tests/api/test_ordering.py"

MUTANTS = [
    Mutant(
        "equal-elements-of-a-short-row-change-their-order",
        _CPU,
        "before -= (name##_lanes)(key[j] <= own);",
        "before -= (name##_lanes)(key[j] < own);",
        c("test_cpu_sort"),
    ),
    Mutant(
        "zeros-of-both-signs-differ",
        _CPU,
        "float number = x[i] + 0.0f;",
        "float number = x[i];",
        c("test_cpu_sort"),
    ),
    Mutant(
        "the-first-of-a-row-are-those-of-its-beginning",
        _CPU,
        "if (is_limited && !below) return;",
        "if (is_limited) return;",
        c("test_cpu_sort"),
    ),
    Mutant(
        "digits-that-one-key-lacks-are-left-out",
        _CPU,
        "(SIZE - 1)] == n) continue;",
        "(SIZE - 1)] >= n - 1) continue;",
        c("test_cpu_sort"),
    ),
    Mutant(
        "a-nan-is-found-in-front",
        _CPU,
        "#define FLOAT_UPTO(a, b) (((a) <= (b)) | ((b) != (b)))",
        "#define FLOAT_UPTO(a, b) ((a) <= (b))",
        c("test_cpu_sort"),
    ),
    Mutant(
        "warps-sort-what-is-anothers",
        _CUDA + ".cu",
        "WARP_SPAN = 64 /*",
        "WARP_SPAN = 512 /*",
        cuda("test_kernels_sort"),
    ),
    Mutant(
        "padding-is-sorted-to-the-front",
        _CUDA + ".cu",
        "shared[i] = E::last();",
        "shared[i] = E::make(0, c);",
        cuda("test_kernels_sort"),
    ),
    Mutant(
        "rows-of-a-radix-sort-mingle",
        _CUDA + ".c",
        "count_bits(s->R - 1)",
        "0",
        host("test_device_sort"),
    ),
    Mutant(
        "gradients-of-sorted-values-stay-in-order",
        "csrc/ops/sort.c",
        "hl_id in[3] = {HL_NONE, node.out + 1, dout[0]};",
        "hl_id in[3] = {HL_NONE, node.out, dout[0]};\n    return HL_OK;",
        c("test_vjp"),
    ),
    Mutant(
        "distinct-values-are-cut-off-in-silence",
        "python/hotloop/graph/ordering.py",
        "first = first + _check_size(rank[-1:] + 1, count)",
        "pass",
        python(f"{_API}::test_more_distinct_values_than_their_size"),
    ),
]
