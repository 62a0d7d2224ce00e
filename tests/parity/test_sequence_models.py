"""Models of tables and sequences against the same in torch: names, logits, loss's gradients."""

import itertools
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from hotloop import models, nn  # noqa: E402
from parity import zoo  # noqa: E402
from parity.twins import check_twins  # noqa: E402

tnn = torch.nn


def pairs(widths: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(widths))


class MLP(tnn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        layers = [(tnn.Linear(a, b), tnn.ReLU()) for a, b in pairs(widths)]
        self.body = tnn.Sequential(*(layer for both in layers for layer in both))
        self.head = tnn.Linear(widths[-1], 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


class GatedMLP(tnn.Module):
    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.norm = tnn.BatchNorm1d(widths[0])
        blocks = [
            (tnn.Linear(a, b), tnn.BatchNorm1d(b), tnn.ReLU(), tnn.Dropout(0.0))
            for a, b in pairs(widths)
        ]
        self.body = tnn.Sequential(*(layer for block in blocks for layer in block))
        n = widths[-1]
        self.gate = tnn.Sequential(
            tnn.Linear(n, n // 2), tnn.ReLU(), tnn.Linear(n // 2, n), tnn.Sigmoid()
        )
        self.head = tnn.Linear(n, 3)

    def forward(self, x: Any) -> Any:
        h = self.body(self.norm(x))
        return self.head(self.gate(h) * h)


class Transformer(tnn.Module):
    def __init__(
        self, d: int = 128, heads: int = 8, layers: int = 3, wide: int = 512, last: bool = False
    ) -> None:
        super().__init__()
        self.last = last
        self.embedding = tnn.Sequential(tnn.Linear(29, d), tnn.LayerNorm(d), tnn.Dropout(0.0))
        layer = tnn.TransformerEncoderLayer(
            d, heads, wide, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = tnn.TransformerEncoder(
            layer, layers, tnn.LayerNorm(d), enable_nested_tensor=False
        )
        self.head = tnn.Sequential(
            tnn.LayerNorm(d), tnn.Dropout(0.0), tnn.Linear(d, d // 2), tnn.GELU(),
            tnn.LayerNorm(d // 2), tnn.Dropout(0.0), tnn.Linear(d // 2, 3),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        place = torch.arange(x.shape[1])[:, None]
        rate = 10_000.0 ** (torch.arange(0, x.shape[2], 2) / x.shape[2])
        table = torch.zeros(x.shape[1:], dtype=x.dtype)
        table[:, 0::2] = torch.sin(place / rate)
        table[:, 1::2] = torch.cos(place / rate)
        x = self.encoder(x + table)
        return self.head(x[:, -1] if self.last else x.mean(1))


class Block(tnn.Module):
    def __init__(self, a: int, b: int, kernel: int, dilation: int) -> None:
        super().__init__()
        from torch.nn.utils import weight_norm

        pad = (kernel - 1) * dilation
        self.pad = pad
        self.conv1 = weight_norm(tnn.Conv1d(a, b, kernel, padding=pad, dilation=dilation))
        self.conv2 = weight_norm(tnn.Conv1d(b, b, kernel, padding=pad, dilation=dilation))
        self.downsample = tnn.Conv1d(a, b, 1) if a != b else None

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.conv1(x)[:, :, : -self.pad])
        y = torch.relu(self.conv2(y)[:, :, : -self.pad])
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class TCN(tnn.Module):
    def __init__(self, *widths: int, kernel: int = 3) -> None:
        super().__init__()
        self.network = tnn.Sequential(
            *(Block(a, b, kernel, 2**i) for i, (a, b) in enumerate(pairs(widths)))
        )
        self.linear = tnn.Linear(widths[-1], 3)

    def forward(self, x: Any) -> Any:
        return self.linear(self.network(x.transpose(1, 2))[:, :, -1])


class Recurrent(tnn.Module):
    def __init__(
        self, kind: Any, n: int = 128, layers: int = 2, bidirectional: bool = True,
        last: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.last = last
        wide = 2 * n if bidirectional else n
        self.input_norm = tnn.LayerNorm(29)
        self.rnn = kind(29, n, layers, batch_first=True, bidirectional=bidirectional)
        self.output_norm = tnn.LayerNorm(wide)
        if not last:
            self.attention = tnn.Sequential(
                tnn.Linear(wide, n), tnn.Tanh(), tnn.Dropout(0.0), tnn.Linear(n, 1)
            )
        self.head = tnn.Sequential(
            tnn.LayerNorm(wide), tnn.Dropout(0.0), tnn.Linear(wide, n), tnn.ReLU(),
            tnn.LayerNorm(n), tnn.Dropout(0.0), tnn.Linear(n, 3),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        h = self.output_norm(self.rnn(self.input_norm(x))[0])
        if self.last:
            return self.head(h[:, -1])
        weights = torch.softmax(self.attention(h)[..., 0], -1)
        return self.head(torch.einsum("nt,ntc->nc", weights, h)), weights


# Model, its twin, the shape of a sample; dropout is off, which no two libraries draw alike.
OFF: dict[str, Any] = {"dropout": 0.0}
CASES = {
    "mlp": (lambda: models.mlp(29, 3), lambda: MLP(29, 128, 64), (29,)),
    "gated_mlp": (
        lambda: models.gated_mlp(29, 3, **OFF), lambda: GatedMLP(29, 128, 96, 64, 32), (29,),
    ),
    "gated_mlp, wide": (
        lambda: models.gated_mlp(29, 3, (40, 20), **OFF), lambda: GatedMLP(29, 40, 20), (29,),
    ),
    "transformer_classifier": (
        lambda: models.transformer_classifier(29, 3, input_dropout=0.0, **OFF), Transformer,
        (20, 29),
    ),
    "transformer_classifier, narrow": (
        lambda: models.transformer_classifier(29, 3, 24, 2, 1, 40, input_dropout=0.0, **OFF),
        lambda: Transformer(24, 2, 1, 40), (7, 29),
    ),
    "transformer_classifier, last row": (
        lambda: models.transformer_classifier(
            29, 3, 24, 2, 1, 40, input_dropout=0.0, pooling="last", **OFF
        ),
        lambda: Transformer(24, 2, 1, 40, last=True), (7, 29),
    ),
    "lstm_classifier, last row": (
        lambda: models.lstm_classifier(29, 3, 16, 1, False, pooling="last", **OFF),
        lambda: Recurrent(tnn.LSTM, 16, 1, False, True), (5, 29),
    ),
    "gru_classifier, last row": (
        lambda: models.gru_classifier(29, 3, 16, pooling="last", **OFF),
        lambda: Recurrent(tnn.GRU, 16, last=True), (5, 29),
    ),
    "tcn": (lambda: models.tcn(29, 3, **OFF), lambda: TCN(29, 64, 64, 64, 64), (20, 29)),
    "tcn, others": (
        lambda: models.tcn(29, 3, (29, 16), 2, **OFF), lambda: TCN(29, 29, 16, kernel=2), (5, 29),
    ),
    "lstm_classifier": (
        lambda: models.lstm_classifier(29, 3, attention_dropout=0.0, **OFF),
        lambda: Recurrent(tnn.LSTM), (20, 29),
    ),
    "lstm_classifier, one way": (
        lambda: models.lstm_classifier(29, 3, 16, 1, False, attention_dropout=0.0, **OFF),
        lambda: Recurrent(tnn.LSTM, 16, 1, False), (5, 29),
    ),
    "gru_classifier": (
        lambda: models.gru_classifier(29, 3, 24, attention_dropout=0.0, **OFF),
        lambda: Recurrent(tnn.GRU, 24), (7, 29),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("name", CASES)
def test_logits(name: str) -> None:
    """In evaluation, from the twin's weights."""
    make, make_twin, shape = CASES[name]
    model, twin = make().eval(), make_twin().eval()
    state = zoo.random_state(twin)
    for key in state:  # a length is positive
        if key.endswith("weight_g"):
            state[key] = np.abs(state[key]) + np.float32(0.5)
    assert set(model.state_dict()) == set(state)
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    model.load_state_dict(state)
    x = np.random.default_rng(1).standard_normal((4, *shape)).astype("float32")
    with torch.no_grad():
        outputs = twin(torch.from_numpy(x))
    got = model(x)
    if not isinstance(outputs, tuple):
        outputs, got = (outputs,), (got,)
    for want, ours in zip(outputs, got, strict=True):
        scale = abs(want).max().item()
        assert scale > 1e-2
        np.testing.assert_allclose(np.asarray(ours), want.numpy(), rtol=0, atol=2e-5 * scale)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, training: bool) -> None:
    """Of every parameter and of the input, in float64."""
    make, make_twin, shape = CASES[name]
    model, twin = make(), make_twin()
    twin.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in model.state_dict().items()})
    x = np.random.default_rng(1).standard_normal((4, *shape))
    # Positions and their sum with x are float32 numbers in the model.
    rtol = 1e-5 if name.startswith("transformer") else 1e-8
    check_twins(model, model, twin, twin, [x], training=training, rtol=rtol)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_pad_sequence(batch_first: bool, side: str) -> None:
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((n, 2, 3)).astype(np.float32) for n in (4, 0, 6, 1)]
    ours = nn.utils.rnn.pad_sequence(given, batch_first, -1.5, side)
    theirs = tnn.utils.rnn.pad_sequence([*map(torch.from_numpy, given)], batch_first, -1.5, side)
    np.testing.assert_array_equal(ours, theirs.numpy())
