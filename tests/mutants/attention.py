"""Mutants of attention: masks, layouts and copies of its layers; its kernels on a GPU."""

from mutants.mutant import Mutant, cuda, host, python

_F, _NN = "python/hotloop/nn/functional/", "python/hotloop/nn/"
_LAYERS = "tests/api/test_attention_modules.py::"

MUTANTS = [
    Mutant(
        "masks-of-layers-show-what-they-hide",
        _F + "attention_masks.py",
        "return ~self.values",
        "return self.values",
        python(_LAYERS + "test_definition"),
    ),
    Mutant(
        "weights-of-a-row-that-sees-nothing-are-even",
        _F + "attention_masks.py",
        "return weights if nothing is None else where(nothing, 0.0, weights)",
        "return weights",
        python(_LAYERS + "test_definition"),
    ),
    Mutant(
        "gradient-of-a-row-that-sees-nothing-is-nan",
        _F + "attention_masks.py",
        "scores = where(nothing, 0.0, scores)",
        "pass",
        python(_LAYERS + "test_gradients_of_rows_that_see_nothing"),
    ),
    Mutant(
        "rule-of-time-hides-what-was-added",
        _F + "attention_masks.py",
        "if is_causal and n_more:",
        "if False:",
        python(_LAYERS + "test_more_keys_are_seen_by_all_rows"),
    ),
    Mutant(
        "mask-that-also-adds-is-the-rule-of-time",
        _F + "attention_masks.py",
        "return np.array_equal(known, np.where(later, -np.inf, 0.0))",
        "return bool((known[later] == -np.inf).all())",
        python(_LAYERS + "test_a_known_mask_of_later_keys_is_the_rule"),
    ),
    Mutant(
        "bool-data-is-added-to-scores",
        _F + "attention_masks.py",
        'is_data = node["op"] in ("batch_gather", "cast")',
        "is_data = False",
        python(_LAYERS + "test_masks_of_data_become_bools_where_it_is_said"),
    ),
    Mutant(
        "layout-of-time-first-is-mixed-up",
        _F + "multi_head.py",
        "order = (0, 2, 1, 3) if s.batch_first else (1, 2, 0, 3)",
        "order = (0, 2, 1, 3)",
        python(_LAYERS + "test_a_layer_in_parts"),
    ),
    Mutant(
        "attention-drops-nothing-where-weights-are-wanted",
        _F + "multi_head.py",
        "return dropout(weights, p) if p > 0 else weights",
        "return weights",
        python(_LAYERS + "test_dropout_is_of_training"),
    ),
    Mutant(
        "attention-drops-in-evaluation",
        _NN + "attention.py",
        "self.dropout if self.dropout and self.training else 0.0",
        "self.dropout",
        python(_LAYERS + "test_dropout_is_of_training"),
    ),
    Mutant(
        "copies-of-a-layer-begin-alike",
        _NN + "transformer.py",
        "memo: dict[int, Any] = {id(p): renewed(p) for p in layer.parameters()}",
        "memo: dict[int, Any] = {}",
        python(_LAYERS + "test_copies_have_their_own_values"),
    ),
    Mutant(
        "saved-model-names-a-stream-that-it-has-not",
        "python/hotloop/training/result/saving.py",
        "if value is not None  # a text",
        "if True  # a text",
        python(_LAYERS + "test_saved_and_loaded"),
    ),
    Mutant(
        "sums-of-attention-on-a-gpu-keep-an-old-scale",
        "kernels/cuda/attention.cu",
        "out.at(i, j) *= kept;",
        "out.at(i, j) *= 1.0f;",
        cuda("test_kernels_attention"),
    ),
    Mutant(
        "warps-of-attention-on-a-gpu-skip-a-diagonal",
        "kernels/cuda/attention.cu",
        "if (n >= to || n + 16 <= from) continue;",
        "if (n + 16 >= to || n + 16 <= from) continue;",
        cuda("test_kernels_attention"),
    ),
    Mutant(
        "attention-on-a-gpu-takes-heads-that-are-too-wide",
        "kernels/cuda/attention.c",
        "if (!n.width)",
        "if (n.width < 0)",
        host("test_device_attention"),
    ),
    Mutant(
        "own-kernels-of-attention-are-no-algorithm",
        "kernels/cuda/attention_dnn.c",
        "state->plans->n + 1;",
        "state->plans->n;",
        host("test_device_attention_dnn"),
    ),
    Mutant(
        "gradient-of-attention-by-cudnn-where-bits-repeat",
        "kernels/cuda/dnn_attention.c",
        "if (is_grad && graph->deterministic)",
        "if (false)",
        host("test_device_attention_dnn"),
    ),
]
