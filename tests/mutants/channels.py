"""Mutants of the statistics of channels."""

from mutants.mutant import Mutant, c, cuda, host, python

_CPU, _CUDA = "kernels/cpu/stat.c", "kernels/cuda/stat.cu"

MUTANTS = [
    Mutant(
        "extremes-of-channels-pass-over-nan",
        _CPU,
        "if (hl_vd_any_nan(sum[0])) find_nan",
        "if (n < 0) find_nan",
        c("test_cpu_stat"),
    ),
    Mutant(
        "products-of-channels-are-a-triangle",
        _CPU,
        "products[(i + k) * C + j] = sum[k];",
        "",
        c("test_cpu_stat"),
    ),
    Mutant(
        "channels-of-rows-that-are-left-out-count",
        _CPU,
        "if (mask && !mask[r]) continue;",
        "",
        c("test_cpu_stat"),
    ),
    Mutant(
        "channels-of-the-last-panel-of-a-part-alone",
        _CPU,
        "hl_vd_store(sums, hl_vd_load(sums) + sum[0]);",
        "hl_vd_store(sums, sum[0]);",
        c("test_cpu_stat"),
    ),
    Mutant(
        "channels-of-one-group-of-threads-alone",
        _CUDA,
        "for (int g = 1; g < t.rows; g++)",
        "for (int g = 1; g < 1; g++)",
        cuda("test_kernels_stat"),
    ),
    Mutant(
        "channels-of-rows-that-are-left-out-count-on-a-gpu",
        _CUDA,
        "bool counts = !p.at.mask || p.at.mask[first + r];",
        "bool counts = true;",
        host("test_device_stat"),
    ),
    Mutant(
        "the-shift-of-channels-is-rounded",
        "python/hotloop/graph/statistics.py",
        "exact = np.asarray(value) if isinstance(value, np.ndarray | list | tuple) else array",
        "exact = array",
        python("tests/ops/test_stat.py::test_arrays"),
    ),
    Mutant(
        "the-mask-of-channels-has-any-shape",
        "csrc/ops/stat.c",
        'HL_TRY(hl_check_shape(mask, &rows, "the mask"));',
        "",
        python("tests/ops/test_stat.py::test_errors"),
    ),
]
