"""Mutants of what models of sequences stand on: attention."""

from mutants.mutant import Mutant, c, python

_CPU, _OPS = "kernels/cpu/", "csrc/ops/"
_VALUE, _GRADIENT = "tests/ops/test_values.py::test_value", "tests/ops/test_gradients.py"
_DROPOUT = "tests/ops/test_attention.py"
_TORCH = "tests/api/test_nn_functional.py"


def _case(*names: str) -> tuple[str, ...]:
    return tuple(f"{_VALUE}[attention-{name}]" for name in names)


def _gradient(name: str) -> str:
    return f"{_GRADIENT}::test_gradient[attention-out-{name}]"


_ATTENTION = [
    Mutant(
        "rows-that-see-nothing-have-a-nan",
        _CPU + "attention.c",
        "if (now == -INFINITY) {",
        "if (n == 0) {",
        python(*_case("2x3x3x5x7x4x6-bool-rows")),
    ),
    Mutant(
        "attention-sums-under-two-largest-scores",
        _CPU + "attention.c",
        "float kept = expf(*top - now);",
        "float kept = 1;",
        python(*_case("1x2x1x130x300x8x5")),
    ),
    Mutant(
        "attention-forgets-its-first-keys",
        _CPU + "attention.c",
        "block == 0, out);",
        "true, out);",
        python(*_case("1x2x1x130x300x8x5")),
    ),
    Mutant(
        "queries-see-one-key-too-few",
        _CPU + "attention.c",
        "hl_cpu_max(at.l + 1 - at.s, 0)",
        "hl_cpu_max(at.l - at.s, 0)",
        python(*_case("2x4x2x9x9x8x8-causal")),
    ),
    Mutant(
        "blocks-of-queries-see-too-few-keys",
        _CPU + "attention.c",
        "hl_cpu_min(n, l + rows - first)",
        "hl_cpu_min(n, l + 1 - first)",
        python(*_case("2x4x2x9x9x8x8-causal")),
    ),
    Mutant(
        "heads-share-the-first-ones-keys",
        _CPU + "attention.c",
        "head % s->H / count_shared(s);",
        "0;",
        python(*_case("2x4x2x9x9x8x8")),
    ),
    Mutant(
        "masks-of-every-head-are-the-first-ones",
        _CPU + "attention.c",
        "at.h * s->mask_stride[1] +",
        "0 * s->mask_stride[1] +",
        python(*_case("2x4x2x9x9x8x8-added-heads")),
    ),
    Mutant(
        "gradients-of-queries-forget-their-first-keys",
        _CPU + "attention.c",
        "count_keys(s, first), first == 0,",
        "count_keys(s, first), true,",
        python(_gradient("1x2x1x130x300x8x5-")),
    ),
    Mutant(
        "keys-forget-the-heads-that-share-them",
        _CPU + "attention.c",
        "is_first = false;\n            }",
        "}",
        python(_gradient("2x4x2x9x9x8x8-")),
    ),
    Mutant(
        "keys-that-nobody-sees-keep-what-was-there",
        _CPU + "attention.c",
        "bool is_first = !s->is_causal;\n        if (s->is_causal) {",
        "bool is_first = true;\n        if (!s) {",
        c("test_cpu_attention"),
    ),
    Mutant(
        "dropout-of-attention-begins-anew-at-each-block",
        _CPU + "attention.c",
        "* s->S + at.s;",
        "* s->S;",
        python(_DROPOUT),
    ),
    Mutant(
        "dropout-of-attention-is-one-for-all-heads",
        _CPU + "attention.c",
        "((at.b * s->H + at.h) * s->L + at.l + i) * s->S",
        "(at.b * s->H * s->L + at.l + i) * s->S",
        python(_DROPOUT),
    ),
    Mutant(
        "gradients-without-dropout",
        _CPU + "attention.c",
        "kept = w * d, gain = gain * d;",
        "kept = w * d;",
        python(_DROPOUT),
    ),
    Mutant(
        "a-masks-gradient-is-scaled",
        _OPS + "attention.c",
        "return hl_build_sum_to(graph, ds, &shape, out_id);",
        "HL_TRY(hl_build_binary_number(graph, HL_OP_MUL, ds, p.attrs.scale, &ds));\n"
        "    return hl_build_sum_to(graph, ds, &shape, out_id);",
        python(_gradient("2x4x2x9x9x8x8-added")),
    ),
    Mutant(
        "a-mask-of-any-shape",
        _OPS + "attention.c",
        "if (mask->shape.dim[d] != 1 && mask->shape.dim[d] != full[d])",
        "if (mask->shape.dim[d] < 0)",
        python("tests/ops/test_attention.py::test_masks_broadcast"),
    ),
    Mutant(
        "attention-of-any-number-of-heads",
        _OPS + "attention.c",
        "out->H % out->Hk != 0",
        "out->H < 0",
        python("tests/ops/test_attention.py::test_heads_are_a_multiple"),
    ),
    Mutant(
        "attention-of-wide-rows-is-not-scaled",
        "python/hotloop/nn/functional/attention.py",
        "1 / math.sqrt(q.shape[-1] or 1)",
        "1.0",
        python(f"{_TORCH}::test_against_torch"),
    ),
]

MUTANTS = [*_ATTENTION]
