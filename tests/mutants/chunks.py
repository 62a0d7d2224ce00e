"""Mutants of losses in chunks, of values with the gradient of another, and of max_norm."""

from mutants.mutant import Mutant, python

_F, _NN = "python/hotloop/nn/functional/", "python/hotloop/nn/"
_CHUNKS = "tests/api/test_vocabularies.py::test_chunks_train_as_the_whole_does"
_STEPS = "tests/parity/test_max_norm.py::test_steps"
_LAYERS = "tests/parity/test_modules.py::test_module"

MUTANTS = [
    Mutant(
        "chunks-run-side-by-side",
        "csrc/passes/schedule.c",
        "if (region == HL_NONE || nodes[i].fence != s->fence) continue;",
        "if (region == HL_NONE) continue;",
        python("tests/null/test_planning.py::test_a_fence_keeps_regions_apart"),
    ),
    Mutant(
        "sums-behind-a-fence-wait-for-the-end",
        "csrc/passes/rewrite.c",
        "if (!most) return HL_OK;",
        "return HL_OK;",
        python(_CHUNKS),
    ),
    Mutant(
        "surrogate-has-the-gradient-of-its-value",
        "csrc/ops/view.c",
        "if (need[1]) din[1] = dout[0];",
        "if (need[0]) din[0] = dout[0];",
        python(_STEPS),
    ),
    Mutant(
        "chunks-have-no-fences",
        _F + "chunks.py",
        "graph.fence()",
        "pass",
        python(_CHUNKS),
    ),
    Mutant(
        "weight-has-the-gradient-of-the-last-chunk",
        _F + "chunks.py",
        "shares[name] + gradient if name in shares else gradient",
        "gradient",
        python(_CHUNKS),
    ),
    Mutant(
        "table-stays-as-it-was",
        _F + "embeddings.py",
        'table.trace.assign(table, add_node("surrogate", changed, table))',
        "changed.detach()",
        python(_STEPS),
    ),
    Mutant(
        "table-has-the-gradient-of-its-change",
        _F + "embeddings.py",
        'add_node("surrogate", changed, table)',
        "changed",
        python(_STEPS),
    ),
    Mutant(
        "parameters-are-what-forward-made-of-them",
        "python/hotloop/training/plans/steps.py",
        "trace.own_leaf(slot.owner)",
        "trace.leaf(slot.owner)",
        python(_STEPS),
    ),
    Mutant(
        "cross-map-norm-takes-channel-0-out",
        _NN + "image_norm.py",
        "if c > half:",
        "if c >= half:",
        python(_LAYERS),
    ),
]
