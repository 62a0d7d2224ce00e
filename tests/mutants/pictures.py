"""Mutants of einsum, of attention to sampled places, and of models that are made of attention."""

from mutants.mutant import Mutant, c, host, python

_MODELS = "python/hotloop/models/"
_CASES = "tests/models/test_transformers.py::"

MUTANTS = [
    Mutant(
        "einsum-multiplies-from-left-to-right",
        "python/hotloop/graph/einsum.py",
        "return _best_order(terms, output, sizes) if n > 2 else pairs[0]",
        "return pairs[0]",
        python("tests/ops/test_einsum.py::test_the_order_has_the_least_work"),
    ),
    Mutant(
        "einsum-multiplies-what-stands-transposed-as-if-it-did-not",
        "python/hotloop/graph/einsum.py",
        "trans_b=int(trans_b)",
        "trans_b=0",
        python("tests/ops/test_einsum.py::test_values"),
    ),
    Mutant(
        "places-at-the-edge-take-from-the-next-row",
        "kernels/cpu/deformable.c",
        "x >= 0 && x < s->width[l] && y >= 0",
        "x >= 0 && y >= 0",
        c("test_cpu_deformable"),
    ),
    Mutant(
        "more-places-than-taps-forget-the-first",
        "kernels/cpu/deformable.c",
        "is_first = false, t.n = 0;",
        "t.n = 0;",
        c("test_cpu_deformable"),
    ),
    Mutant(
        "places-of-a-warp-overwrite-those-before",
        "kernels/cuda/deformable.cu",
        "if (w < row) to += count[w];",
        "",
        host("test_device_deformable"),
    ),
    Mutant(
        "tiles-miss-places-left-of-them",
        "kernels/cuda/deformable.cu",
        "is_near = is_near && x >= -1 &&",
        "is_near = is_near && x >= 0 &&",
        host("test_device_deformable"),
    ),
    Mutant(
        "bert-sees-its-padding",
        _MODELS + "bert.py",
        "mask = None if attention_mask is None else",
        "mask = None if attention_mask is not None else",
        python(_CASES + "test_padding_changes_nothing"),
    ),
    Mutant(
        "the-frozen-stem-is-trained",
        _MODELS + "deformable.py",
        "if not trains or not name.startswith(",
        "if not trains and not name.startswith(",
        python(_CASES + "test_the_frozen_part_of_the_encoder_is_not_trained"),
    ),
]
