"""Layers of images: what does not fit is said before anything runs."""

import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.errors import ConfigError, ShapeError
from hotloop.nn import functional as F

X = np.zeros((2, 4, 6, 6), "float32")
HUGE = 2**40


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Conv2d(4, 6, 3, groups=3), "groups must divide in_channels=4, got 3"),
        (lambda: nn.Conv2d(6, 4, 3, groups=3), "groups must divide out_channels=4, got 3"),
        (lambda: nn.Conv2d(4, 6, 3, stride=0), "stride must be .* at least 1, got 0"),
        (lambda: nn.Conv2d(4, 6, 3, dilation=(1, 0)), r"dilation must be .* got \(1, 0\)"),
        (lambda: nn.Conv2d(4, 6, 0), "kernel_size must be"),
        (lambda: nn.Conv2d(4, 6, (3, 3, 3)), "an integer or 2 of them"),
        (lambda: nn.Conv2d(4, 6, 3, padding=-1), "padding must be"),
        (lambda: nn.Conv2d(4, 6, 3, stride=2, padding="same"), 'padding "same" needs stride 1'),
        (lambda: nn.Conv2d(4, 6, 3, padding="full"), "got 'full'"),
        (lambda: nn.Conv2d(4, 6, 3, padding_mode="mirror"), "padding_mode must be"),
        (lambda: nn.ConvTranspose2d(4, 6, 3, padding_mode="reflect"), "padding_mode must be"),
        (lambda: nn.Conv2d(4, 6, 2.5), "kernel_size must be"),
        (lambda: nn.GroupNorm(3, 4), "num_groups must divide num_channels=4, got 3"),
        (lambda: nn.FractionalMaxPool2d(2), "one of them, got neither"),
        (lambda: nn.FractionalMaxPool2d(2, 2, 0.5), "one of them, got both"),
        (lambda: nn.DropPath(1.5), r"drop_prob must lie in \[0, 1\], got 1.5"),
        (lambda: nn.SyncBatchNorm(4, process_group=object()), "process_group must be None"),
    ],
)
def test_layers_that_cannot_be(make, words) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.Conv2d(4, 6, 7)(X), ShapeError, "must fit"),
        (lambda: F.conv2d(X, np.zeros((6, 4, 3, 9), "float32")), ShapeError, "must fit"),
        (lambda: nn.Conv2d(3, 6, 3)(X), ShapeError, "must have 3 channels"),
        (lambda: nn.Conv2d(6, 4, 3)(X), ShapeError, r"write x\.permute\(0, 3, 1, 2\)"),
        (lambda: nn.Conv2d(4, 6, 3)(X[0, 0]), ShapeError, r"\(N, C, H, W\)"),
        (lambda: F.conv2d(X, np.zeros((6, 4, 3), "float32")), ShapeError, "weight"),
        (lambda: F.conv2d(X, np.zeros((5, 2, 3, 3), "float32"), groups=2), ShapeError, "groups"),
        (lambda: F.conv2d(X, np.zeros((6, 4, 3, 3), "float32"), stride=HUGE), None, "stride"),
        (lambda: F.conv2d(X, np.zeros((6, 4, 3, 3), "float32"), padding=HUGE), None, "padding"),
        (lambda: F.conv2d(X, np.zeros((6, 4, 3, 3), "float32"), dilation=HUGE), None, ""),
        (lambda: F.max_pool2d(X, 9), ShapeError, "must fit"),
        (lambda: F.max_pool2d(X, 3, padding=2), ConfigError, "at most half of the kernel"),
        (lambda: F.avg_pool2d(X, 2, divisor_override=0), ConfigError, "other than 0"),
        (lambda: F.max_pool2d(X, 2, stride=0), ConfigError, "stride must be"),
        (lambda: F.adaptive_avg_pool2d(X, 0), ConfigError, "output_size must be"),
        (lambda: F.adaptive_max_pool2d(X, (2, 2, 2)), ConfigError, "must have 2 numbers"),
        (lambda: F.adaptive_avg_pool2d(X, HUGE), ShapeError, "up to 16777216 elements"),
        (lambda: F.adaptive_max_pool2d(X, (1, 2**62)), ShapeError, "up to 16777216 elements"),
        (lambda: F.adaptive_avg_pool2d(X[:, :, :0], 1), ShapeError, "must have elements"),
        (lambda: F.adaptive_max_pool2d(X[..., :0], 1), ShapeError, "must have elements"),
        (lambda: F.fractional_max_pool2d(X, 3, 6), ShapeError, "must be at most"),
        (lambda: F.max_unpool2d(X, np.zeros((2, 4, 6, 5), int), 2), ShapeError, "input's shape"),
        (lambda: F.max_unpool2d(X, np.zeros(X.shape, int), 2, output_size=[40, 40]), ConfigError,
         "less than the stride"),
        (lambda: F.lp_pool2d(X, 0, 2), ConfigError, "norm_type must not be 0"),
        (lambda: F.lp_pool2d(X, None, 2), ConfigError, "norm_type must be a number, got None"),
        (lambda: F.max_unpool2d(X, np.zeros(X.shape, int), 2, output_size="x"), ConfigError,
         "output_size must be a sequence of integers, got 'x'"),
        (lambda: F.interpolate(X), ConfigError, "size"),
        (lambda: F.interpolate(X, size=0), None, "size"),
        (lambda: F.interpolate(X, scale_factor=0.0), None, "scale"),
        (lambda: F.interpolate(X, scale_factor=1e12), None, ""),
        (lambda: F.interpolate(X, scale_factor=float("inf")), ConfigError, "a number above 0"),
        (lambda: F.interpolate(X, scale_factor=float("nan")), ConfigError, "a number above 0"),
        (lambda: F.interpolate(X, size=2.5), ConfigError, "size must be an integer, at least 1"),
        (lambda: F.interpolate(X, size=3, mode="cubic"), ConfigError, "bicubic"),
        (lambda: F.interpolate(X, size=3, mode="linear"), None, "linear"),
        (lambda: F.pixel_shuffle(X, 3), ShapeError, "multiple of 9"),
        (lambda: F.pixel_unshuffle(X, 4), ShapeError, "4"),
        (lambda: F.channel_shuffle(X, 3), ShapeError, "groups must divide"),
        (lambda: F.unfold(X, 9), ShapeError, "must fit"),
        (lambda: F.fold(np.zeros((2, 9, 5), "float32"), 4, 3), ShapeError, "windows"),
        (lambda: F.fold(np.zeros((2, 8, 4), "float32"), 4, 3), ShapeError, "multiple of 9"),
        (lambda: F.group_norm(X, 3), ShapeError, "must divide the 4 channels"),
        (lambda: F.group_norm(X, None), ConfigError, "num_groups must be an integer"),
        (lambda: F.group_norm(X[:, :0], 1), ShapeError, "have elements"),
        (lambda: F.group_norm(X[:, :, :0], 2), ShapeError, "have elements"),
        (lambda: F.instance_norm(X[:, :0]), ShapeError, "with channels"),
        (lambda: F.local_response_norm(X, None), ConfigError, "size must be an integer"),
        (lambda: F.local_response_norm(X, 2, "a"), ConfigError, "alpha must be a number, got 'a'"),
        (lambda: F.affine_grid(np.zeros((2, 2, 3), "float32"), None), ConfigError,
         "size must be a sequence of integers"),
        (lambda: F.affine_grid(np.zeros((2, 2, 3), "float32"), [2, 1, 2.5, 3]), ConfigError,
         "size must be a sequence of integers"),
        (lambda: F.instance_norm(X[:, :, :1, :1]), ShapeError, "more than one value"),
        (lambda: F.instance_norm(X, use_input_stats=False), ConfigError, "running_mean"),
        (lambda: F.local_response_norm(X, 0), ConfigError, "at least 1"),
        (lambda: F.grid_sample(X, np.zeros((2, 3, 3, 3), "float32")), ShapeError, "needs a grid"),
        (lambda: F.grid_sample(X, np.zeros((2, 3, 3, 2), "float32"), "cubic"), ConfigError,
         "mode must be one of"),
        (lambda: F.affine_grid(np.zeros((2, 2, 2), "float32"), [2, 1, 3, 3]), ShapeError,
         r"\(2, 2, 3\)"),
        (lambda: nn.BatchNorm2d(3)(X), ShapeError, r"must be \(N, 3, H, W\)"),
        (lambda: nn.InstanceNorm2d(3, affine=True)(X), ShapeError, r"must be \(N, 3, H, W\)"),
        (lambda: nn.LazyConv2d(3, 2)(X[0, 0]), ShapeError, "dims"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(call, error, words) -> None:
    with pytest.raises(error or (ConfigError, ShapeError), match=words):
        call()


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "words"),
    [
        ("conv", [(1, 4, 5), (2, 4, 6)], {}, "must fit into the padded input"),
        ("conv", [(1, 4, 5), (2, 3, 2)], {}, "4 channels in .*, got 3"),
        ("conv", [(1, 4, 5), (2, 1, 2)], {"groups": 2}, "2 channels in .*, got 1"),
        ("conv", [(1, 4, 5), (3, 2, 2)], {"groups": 2}, "groups must divide the channels"),
        ("conv", [(1, 4, 5), (3, 2, 2)], {"groups": 0}, "groups must divide the channels"),
        ("conv", [(1, 4, 5), (3, 4, 2)], {"stride": (0,)}, "stride must be at least 1"),
        ("conv", [(1, 4, 5), (3, 4, 2)], {"dilation": (2**31,)}, "less than 2..31"),
        ("conv", [(1, 4, 5), (3, 4, 2)], {"before": (-1,)}, "padding must be at least 0"),
        ("conv", [(1, 4, 5), (3, 4, 2)], {"stride": (1, 1)}, "stride must have 1 numbers, got 2"),
        ("conv", [(1, 4, 5), (3, 4, 2), (2,)], {}, "bias"),
        ("conv", [(1, 4), (3, 4)], {}, "1 to 3 spatial dims"),
        ("conv", [(1, 4, 1, 1, 1, 1), (3, 4, 1, 1, 1, 1)], {}, "1 to 3 spatial dims"),
        ("conv_transpose", [(1, 4, 5), (4, 2, 2)], {"size": (7,)}, "must have size 6"),
        ("conv_transpose", [(1, 4, 5), (4, 2, 2)], {}, "size must have 1 numbers"),
        ("max_pool", [(1, 2, 3)], {"kernel": (2,), "before": (2,)}, "before spatial dim 0"),
        ("max_pool", [(1, 2, 3)], {"kernel": (2,), "after": (2,)}, "behind spatial dim 0"),
        ("max_pool", [(1, 2, 3)], {"kernel": (2,), "dilation": (4,), "before": (1,),
                                   "after": (2,)}, "before spatial dim 0"),
        ("max_pool", [(1, 2, 3)], {"kernel": (2, 2)}, "kernel must have 1 numbers"),
        ("max_pool", [(1, 2, 3)], {"kernel": (0,)}, "at least 1"),
        ("unfold", [(1, 3, 2)], {"kernel": (4,)}, "must fit"),
        ("unfold", [(1, 3, 2)], {"kernel": (2,), "size": (3,)}, "size must have 0 numbers"),
        ("fold", [(1, 2, 3, 2)], {"kernel": (2,), "size": (3,)}, "the input must"),
    ],
)  # fmt: skip
def test_graphs_that_cannot_be(op, shapes, attrs, words) -> None:
    """What no function of nn lets through is refused by the ops as well."""
    graph = _core.Graph()
    ids = [graph.input(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]
    with pytest.raises((ConfigError, ShapeError), match=words):
        graph.add(op, ids, **attrs)


def test_a_state_that_does_not_fit() -> None:
    """Missing, unexpected and misshapen values are listed."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    state = dict(model.state_dict())
    state["0.weight"] = np.zeros((4, 1, 3, 3), "float32")
    state["head.weight"] = state.pop("1.weight")
    with pytest.raises(ShapeError) as caught:
        model.load_state_dict(state)
    for words in ("0.weight must be (4, 3, 3, 3), got (4, 1, 3, 3)", "missing keys: 1.weight",
                  "unexpected keys: head.weight"):  # fmt: skip
        assert words in str(caught.value)


def test_sizes_that_overflow() -> None:
    """They are an error, not a wrapped number."""
    x = np.zeros((1, 1, 2, 2), "float32")
    for call in (
        lambda: F.interpolate(x, size=2**33),
        lambda: F.pad(x, (2**40, 0)),
        lambda: F.conv_transpose2d(x, np.ones((1, 1, 1, 1), "float32"), stride=2**31 - 1),
    ):
        with pytest.raises((ConfigError, ShapeError, MemoryError)):
            call()
