"""Mutants of connectionist temporal classification, Cholesky factors and triangular systems."""

from mutants.mutant import Mutant, c, host, python

_CPU, _CUDA = "kernels/cpu/", "kernels/cuda/"

MUTANTS = [
    Mutant(
        "ctc-paths-skip-between-equal-classes",
        _CPU + "ctc.c",
        "if (i == 1 || q->class[i] != q->class[i - 2]) q->skip[i] = 0;",
        "q->skip[i] = 0;",
        c("test_cpu_solve"),
    ),
    Mutant(
        "ctc-divides-by-more-than-the-targets",
        "python/hotloop/nn/functional/sequence_losses.py",
        "min=1.0",
        "min=2.0",
        python("tests/api/test_ctc.py::test_every_alignment"),
    ),
    Mutant(
        "ctc-gradient-takes-a-class-once-for-each-place",
        _CUDA + "ctc.cu",
        "if (chain[u] < -1) continue;",
        "",
        host("test_device_solve"),
    ),
    Mutant(
        "matrices-of-pivot-zero-have-factors",
        _CPU + "linalg.c",
        "if (!(pivot > 0)) {",
        "if (pivot < 0) {",
        c("test_cpu_solve"),
    ),
    Mutant(
        "gradient-of-a-factor-reads-what-is-above-the-diagonal",
        "csrc/ops/linalg.c",
        "hl_build_where(graph, lower, p, mirrored, &p)",
        "hl_build_where(graph, lower, p, p, &p)",
        python("tests/ops/test_gradients.py"),
    ),
    Mutant(
        "gradients-of-systems-are-rounded-to-16-bits",
        "csrc/ops/linalg.c",
        ".keeps_float32 = true",
        ".keeps_float32 = false",
        python("tests/ops/test_linalg_errors.py::test_gradients_keep_float32"),
    ),
]
