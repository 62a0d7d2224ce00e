"""The stored lists and answers of torch.nn against the torch that is installed."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api import nn_cases
from hotloop import nn
from hotloop.nn import functional, init
from needs import take_library

torch = take_library("torch")

NAMES = json.loads((Path(__file__).parent / "torch_nn_2_13.json").read_text())

pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."),
    reason=f"the lists are of torch 2.13, not {torch.__version__} (make test-long installs it)",
)
# What torch's own functions call, of which its documentation says nothing.
HELPERS = {"assert_int_or_pair", "has_torch_function"}
HELPERS |= {"has_torch_function_unary", "has_torch_function_variadic"}
FOREIGN = ("typing", "collections.abc", "torch.overrides", "torch._jit_internal")


def names_of(home, keep):
    return sorted(n for n in dir(home) if not n.startswith("_") and keep(getattr(home, n)))


def test_stored_names_are_torchs():
    def is_function(value):
        module = getattr(value, "__module__", None)
        return callable(value) and not inspect.isclass(value) and module not in FOREIGN

    assert set(NAMES["classes"]) <= set(names_of(torch.nn, inspect.isclass))
    functions = set(names_of(torch.nn.functional, is_function))
    assert set(NAMES["functions"]) == functions - HELPERS
    new = set(names_of(torch.nn, inspect.isclass)) - set(NAMES["classes"])
    assert not new, f"not in the stored list: {sorted(new)}"


# timm's, torchvision's and Deformable DETR's
OTHERS = {"DropPath", "FrozenBatchNorm2d", "MultiScaleDeformableAttention"}
OTHERS |= {"ALiBi", "KVCache", "RotaryPositionalEmbeddings", "SinusoidalPositionalEncoding"}
OTHER_FUNCTIONS = {"drop_path", "multi_scale_deformable_attention", "alibi_bias", "alibi_slopes"}
OTHER_FUNCTIONS |= {"rotary_embedding", "sinusoidal_positions"}
NO_LAYERS = {"Module", "Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer"}
NO_LAYERS |= {"LinearCrossEntropyOptions"}


def parameters_of(call):
    return [(p.name, p.kind) for p in inspect.signature(call).parameters.values()]


def test_signatures_of_layers():
    for name in nn.__all__:
        cls = getattr(nn, name)
        if not isinstance(cls, type) or name in {"Module", "Parameter", "Buffer"} | OTHERS:
            continue
        want = parameters_of(getattr(torch.nn, name))
        if [n for n, _ in want] == ["args", "kwargs"]:
            continue  # torch takes and ignores anything
        assert parameters_of(cls) == want, name


# What torch calls of its layers itself.
INNER = {"cls_to_become", "has_uninitialized_params", "initialize_parameters", "merge_masks"}
INNER |= {"check_forward_args", "check_hidden_size", "check_input", "permute_hidden"}
INNER |= {"get_expected_hidden_size", "get_expected_cell_size"}
INNER |= {"copy", "fromkeys", "popitem", "setdefault"}  # of a dict, which ParameterDict is not


def test_methods_of_layers():
    for name in sorted(set(nn.__all__) - NO_LAYERS - OTHERS):
        ours = getattr(nn, name)
        if isinstance(ours, type):
            theirs = getattr(torch.nn, name)
            own = set(names_of(theirs, callable)) - set(names_of(torch.nn.Module, callable))
            assert not own - INNER - set(dir(ours)), name
            for method in own & {"reset_parameters", "reset_running_stats"}:
                want = parameters_of(getattr(theirs, method))
                assert parameters_of(getattr(ours, method)) == want, name


def test_signatures_of_functions():
    for name in set(functional.__all__) - OTHER_FUNCTIONS:
        try:
            want = [n for n, _ in parameters_of(getattr(torch.nn.functional, name))]
        except ValueError:
            continue  # built in C without a signature
        if want == ["args", "kwargs"]:
            continue  # chosen by return_indices
        have = [n for n, _ in parameters_of(getattr(functional, name))]
        assert have == [n for n in want if n != "out"], name
    for name in init.__all__:
        want = [n for n, _ in parameters_of(getattr(torch.nn.init, name))]
        have = [n for n, _ in parameters_of(getattr(init, name))]
        assert have == [n for n in want if n != "generator"], name


ARGUMENTS: dict[str, Any] = {
    "Bilinear": (3, 4, 5),
    **dict.fromkeys(("Embedding", "EmbeddingBag"), (5, 3)),
    "LayerNorm": ((3, 4),),
    "Linear": (3, 4),
    "Threshold": (0.1, 2.0),
    "Unflatten": (1, (2, 3)),
    **dict.fromkeys(("RMSNorm", "PReLU", "LazyLinear", "SyncBatchNorm"), (4,)),
    "GroupNorm": (2, 4),
    "Fold": (5, 3),
    "Upsample": (5,),
    **{
        f"{kind}{n}d": given
        for n in (1, 2, 3)
        for kind, given in (
            ("AdaptiveAvgPool", (3,)), ("AdaptiveMaxPool", (3,)), ("AvgPool", (3,)),
            ("BatchNorm", (4,)), ("Conv", (4, 6, 3)), ("ConvTranspose", (4, 6, 3)),
            ("FractionalMaxPool", (2, 3)), ("InstanceNorm", (4,)), ("LPPool", (2, 3)),
            ("LazyConv", (6, 3)), ("LazyConvTranspose", (6, 3)), ("MaxPool", (3,)),
            ("MaxUnpool", (3,)),
        )
    },
    **dict.fromkeys(("ChannelShuffle", "CrossMapLRN2d"), (3,)),
    **dict.fromkeys(("LocalResponseNorm", "PixelShuffle"), (3,)),
    **dict.fromkeys(("PixelUnshuffle", "Unfold", "UpsamplingNearest2d"), (3,)),
    "UpsamplingBilinear2d": (3,),
    **dict.fromkeys(("RNNCell", "LSTMCell", "GRUCell"), (4, 3)),
    "RNNCellBase": (4, 3, True, 2),
    "RNNBase": ("GRU", 4, 3),
    "RNN": (4, 3),
    "GRU": (4, 3, 2, False, True),
    "LSTM": (4, 6, 2, True, False, 0.5, True, 2),
    "AdaptiveLogSoftmaxWithLoss": (16, 20, [4, 10]),
    "LinearCrossEntropyLoss": (6, 5),
    "MultiheadAttention": (8, 2),
    "Transformer": (8, 2, 1, 2, 16),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), (8, 2, 16)),
    "TransformerEncoder": lambda home: (home.TransformerEncoderLayer(8, 2), 2, home.LayerNorm(8)),
    "TransformerDecoder": lambda home: (home.TransformerDecoderLayer(8, 2), 2, home.LayerNorm(8)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_reprs_and_keys_of_layers():
    for name in nn.__all__:
        cls = getattr(nn, name)
        if not isinstance(cls, type) or name in NO_LAYERS | OTHERS:
            continue
        given = ARGUMENTS.get(name, ())
        if "Pad" in name:
            given = (2, 1.5) if name.startswith("Constant") else (2,)
        own, other = (given(home) if callable(given) else given for home in (nn, torch.nn))
        ours, theirs = cls(*own), getattr(torch.nn, name)(*other)
        assert repr(ours) == repr(theirs)
        if not name.startswith("Lazy"):
            state = {k: tuple(v.shape) for k, v in theirs.state_dict().items()}
            assert {k: v.shape for k, v in ours.state_dict().items()} == state
            assert list(ours.state_dict()) == list(state)


def test_torchs_state_loads():
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    ours = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    ours.load_state_dict(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[key], value.numpy())


def test_stored_answers_are_torchs():
    stored = np.load(nn_cases.STORED)
    for key, value in nn_cases.torch_answers().items():
        np.testing.assert_allclose(stored[key], value, rtol=1e-9, atol=1e-12, err_msg=key)
