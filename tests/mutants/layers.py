"""Mutants of learning rates by layers: what is one layer, and which rate it has."""

from mutants.mutant import Mutant, python

_LAYERS = "python/hotloop/training/plans/layers.py"
_STEPS = "python/hotloop/training/plans/steps.py"
_TESTS = "tests/train/test_layers.py::test_"

MUTANTS = [
    Mutant(
        "rates-fall-towards-the-output",
        _LAYERS,
        "id(parameter): decay ** (len(layers) - 1 - i)",
        "id(parameter): decay**i",
        python(_TESTS + "it_has_the_bits_of_groups_with_these_rates"),
    ),
    Mutant(
        "a-group-without-a-rate-has-the-whole-rate",
        _STEPS,
        "return otherwise if group.lr_scale is None else group.lr_scale",
        "return 1.0 if group.lr_scale is None else group.lr_scale",
        python(_TESTS + "rates_that_are_given_win"),
    ),
    Mutant(
        "a-norm-is-a-layer-of-its-own",
        _LAYERS,
        "if _has_vectors_alone(child) or (is_table and follows_table):",
        "if is_table and follows_table:",
        python(_TESTS + "a_resnet_has_timms_layers"),
    ),
    Mutant(
        "tables-of-embeddings-are-layers-of-their-own",
        _LAYERS,
        "if _has_vectors_alone(child) or (is_table and follows_table):",
        "if _has_vectors_alone(child):",
        python(_TESTS + "tables_and_tokens_are_the_first_layer"),
    ),
    Mutant(
        "blocks-are-looked-into",
        _LAYERS,
        "    if not in_stack or is_outermost:",
        "    if True:",
        python(_TESTS + "what_is_looked_into"),
    ),
    Mutant(
        "a-model-behind-a-head-is-one-layer",
        _LAYERS,
        "return any(map(_holds_blocks if in_stack else _holds_layers, inner))",
        "return False",
        python(_TESTS + "what_is_looked_into"),
    ),
    Mutant(
        "one-layer-is-accepted",
        _LAYERS,
        "if len(layers) < 2:",
        "if not layers:",
        python(_TESTS + "one_layer_is_refused"),
    ),
    Mutant(
        "offsets-of-a-batch-that-fall",
        "python/hotloop/nn/functional/embeddings.py",
        "rises = (offsets >= least) & (offsets[0] == 0)",
        "rises = offsets[0] == 0",
        python("tests/api/test_positions.py::test_wrong_offsets_of_a_batch"),
    ),
    Mutant(
        "embeddings-reset-to-no-row-of-padding",
        "python/hotloop/nn/sparse.py",
        "if padding_idx is None else _NormalWithZeroRow(padding_idx)",
        "",
        python("tests/api/test_nn_module.py::test_reset_parameters_of_every_layer"),
    ),
]
