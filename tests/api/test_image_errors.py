"""What calls of image layers say about shapes, as they were given."""

from collections.abc import Callable
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from hotloop.nn import functional as F


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nn.Conv1d(5, 3, 3)(ones(1, 40)), r"as its dim 0, got shape \(1, 40\)$"),
        (lambda: nn.Conv1d(1, 3, 3)(ones(4, 40)), r"dim 0 are rows, .* write x.unsqueeze\(1\)"),
        (
            lambda: nn.Conv2d(1, 3, 3)(ones(8, 40, 50)),
            r"got shape \(8, 40, 50\); where dim 0",
        ),
        (lambda: nn.Conv2d(3, 8, 3)(ones(40, 50, 3)), r"stand last: write x.permute\(2, 0, 1\)"),
        (lambda: nn.Conv2d(3, 8, 3)(ones(2, 40, 50, 3)), r"write x.permute\(0, 3, 1, 2\)"),
        (lambda: F.interpolate(ones(1, 1, 2, 2), size=3, scale_factor=2), "one of them, got both"),
        (lambda: F.interpolate(ones(1, 1, 2, 2)), "one of them, got neither"),
        (lambda: F.interpolate(ones(3, 8, 8), size=(4, 4)), r"of 3 dims .*one image write x\[None"),
        (lambda: F.interpolate(ones(3, 8, 8), size=4, mode="bilinear"), r"one image write x\[None"),
        (
            lambda: nn.ZeroPad2d(-5)(ones(1, 1, 2, 2)),
            r"must have a size .* \(-5, -5\)",
        ),
        (
            lambda: nn.ZeroPad2d((1, 1)),
            r"ZeroPad2d: padding must be one number or 4, before and",
        ),
        (lambda: models.unet()(ones(1, 3, 15, 64)), r"must have 16 or more rows and columns, got"),
        (lambda: models.convnext_tiny()(ones(3, 64, 64)), r"LayerNorm2d.*must be \(N, C, H, W\)"),
    ],
)
def test_messages(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((hl.ShapeError, hl.ConfigError), match=words):
        call()


def test_indices_of_unpooling_are_no_ids() -> None:
    """The advice for an embedding, more rows, is none for places in an image."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unpool, self.head = nn.MaxUnpool2d(2), nn.Linear(16, 2)

        def forward(self, x: Any, index: Any) -> Any:
            return self.head(self.unpool(x, index).flatten(1))

    index = np.tile([[0, 2], [8, 99]], (8, 1, 1, 1))
    data = ((ones(8, 1, 2, 2), index), np.arange(8) % 2)
    with pytest.raises(
        hl.DataError, match=r"indices must be .*below 16, the places that MaxUn"
    ) as e:
        hl.train(Net(), data, max_epochs=1, enable_progress_bar=False)
    assert str(e.value).endswith("; mend the indices")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_instance_norm_uses_num_features_where_values_have_it(n: int) -> None:
    layer, shape = getattr(nn, f"InstanceNorm{n}d"), (4,) * n
    x = np.random.default_rng(0).standard_normal((2, 5, *shape)).astype(np.float32)
    with pytest.warns(hl.ModelWarning, match=rf"^InstanceNorm{n}d: the input has 5 channels and n"):
        y = layer(3)(x)
    assert np.array_equal(y, layer(5)(x))
    for options in ({"affine": True}, {"track_running_stats": True}):
        with pytest.raises(hl.ShapeError, match=r"input must be \(N, 3, "):
            layer(3, **options)(x)
    with pytest.raises(hl.ShapeError, match=r"input must be \(N, 3\)"):
        nn.BatchNorm1d(3, affine=False, track_running_stats=False)(ones(2, 5))
