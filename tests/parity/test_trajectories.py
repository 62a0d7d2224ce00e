"""Whole nets, step by step: losses, predictions, weights.

By DESIGN's rule: SGD in float32 compares weights; Adam-type optimizers in float64 (gradients that
are analytically zero, such as those of a bias before BatchNorm, make their float32 trajectories
incomparable even with themselves). Batches are hotloop's own.
"""

from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import models, nn  # noqa: E402
from parity import test_gpt, test_sequence_models  # noqa: E402
from parity.twins import copy_weights  # noqa: E402
from train.recipes import classes, quiet, regression  # noqa: E402


def add_layers(model: Any, home: Any) -> None:
    """Tokens, three residual blocks of LayerNorm and GELU, a head: written once for both."""
    model.table = home.Embedding(23, 16)
    model.blocks = home.ModuleList(
        home.Sequential(home.LayerNorm(16), home.Linear(16, 32), home.GELU(), home.Linear(32, 16))
        for _ in range(3)
    )
    model.head = home.Linear(16, 4)


class Residual(nn.Module):
    """add_layers under hotloop's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_layers(self, nn)

    def forward(self, x: Any) -> Any:
        h = self.table(x).mean(1)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class TorchResidual(torch.nn.Module):
    """The same body under torch's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_layers(self, torch.nn)

    forward = Residual.forward


def batch_norm_net(home: Any) -> Any:
    return home.Sequential(
        home.Linear(20, 32),
        home.BatchNorm1d(32),
        home.ReLU(),
        home.Dropout(0.0),
        home.Linear(32, 16),
        home.BatchNorm1d(16),
        home.ReLU(),
        home.Linear(16, 3),
    )


def conv_net(home: Any) -> Any:
    return home.Sequential(
        home.Conv2d(3, 8, 3, padding=1, bias=False), home.BatchNorm2d(8), home.ReLU(),
        home.MaxPool2d(2), home.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        home.BatchNorm2d(16), home.ReLU(), home.AdaptiveAvgPool2d(1), home.Flatten(),
        home.Linear(16, 4),
    )  # fmt: skip


def depthwise_net(home: Any) -> Any:
    # No bias before the instance norm: its gradient is zero but for rounding, which Adam enlarges.
    return home.Sequential(
        home.Conv2d(3, 12, 3, padding="same"), home.GroupNorm(3, 12), home.SiLU(),
        home.Conv2d(12, 12, 5, padding=2, groups=12, bias=False),
        home.InstanceNorm2d(12, affine=True), home.GELU(), home.Conv2d(12, 6, 1),
        home.AdaptiveMaxPool2d(4), home.Flatten(), home.Linear(96, 4),
    )  # fmt: skip


def image_autoencoder(home: Any) -> Any:
    return home.Sequential(
        home.Conv2d(3, 8, 3, stride=2, padding=1), home.LeakyReLU(0.1),
        home.Conv2d(8, 8, 3, padding=2, dilation=2, groups=2, padding_mode="reflect"), home.Tanh(),
        home.ConvTranspose2d(8, 12, 4, stride=2, padding=1), home.Softplus(), home.PixelShuffle(2),
        home.Conv2d(3, 3, 2, stride=2),
    )  # fmt: skip


def add_image_layers(model: Any, home: Any) -> None:
    """A stem and two residual blocks, the second one with a convolution in its shortcut."""
    model.stem = home.Conv2d(3, 8, 3, padding=1, bias=False)
    model.norms = home.ModuleList(home.BatchNorm2d(c) for c in (8, 8, 12, 12))
    model.convs = home.ModuleList(
        [home.Conv2d(8, 8, 3, padding=1, bias=False),
         home.Conv2d(8, 12, 3, stride=2, padding=1, bias=False)]
    )  # fmt: skip
    model.shortcut = home.Conv2d(8, 12, 1, stride=2, bias=False)
    model.head = home.Linear(12, 4)


class ResidualImages(nn.Module):
    """add_image_layers under hotloop's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_image_layers(self, nn)

    def forward(self, x: Any) -> Any:
        x = self.norms[0](self.stem(x)).relu()
        x = (self.norms[1](self.convs[0](x)) + x).relu()
        x = (self.norms[2](self.convs[1](x)) + self.norms[3](self.shortcut(x))).relu()
        return self.head(x.mean((2, 3)))


class TorchResidualImages(torch.nn.Module):
    """The same body under torch's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_image_layers(self, torch.nn)

    forward = ResidualImages.forward


def add_attention(model: Any, home: Any) -> None:
    """Tokens, an encoder that sees earlier ones, a decoder over its output, a head."""
    model.table, model.place = home.Embedding(23, 16), home.Embedding(6, 16)
    layer = home.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True, norm_first=True)
    model.encoder = home.TransformerEncoder(layer, 2, home.LayerNorm(16))
    other = home.TransformerDecoderLayer(16, 4, 24, 0.0, "gelu", batch_first=True)
    model.decoder = home.TransformerDecoder(other, 1)
    model.pool = home.MultiheadAttention(16, 2, kdim=16, vdim=16, add_bias_kv=True)
    model.head = home.Linear(16, 4)


def apply_attention(model: Any, x: Any, home: Any) -> Any:
    hidden = x == 0
    later = home.Transformer.generate_square_subsequent_mask(6)
    places = model.place.weight
    memory = model.encoder(model.table(x) + places, mask=later, src_key_padding_mask=hidden)
    h = model.decoder(places + memory * 0, memory, memory_key_padding_mask=hidden)
    h = h.transpose(0, 1)  # (L, N, E)
    return model.head(model.pool(h[:1], h, h, hidden)[0][0])


class Attention(nn.Module):
    """add_attention under hotloop's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_attention(self, nn)

    def forward(self, x: Any) -> Any:
        return apply_attention(self, x, nn)


class TorchAttention(torch.nn.Module):
    """The same body under torch's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_attention(self, torch.nn)

    def forward(self, x: Any) -> Any:
        return apply_attention(self, x, torch.nn)


def add_recurrences(model: Any, home: Any) -> None:
    """Norm, two layers in both directions, attention over their steps, a head; then a GRU beside
    and an LSTM with a projection."""
    model.norm = home.LayerNorm(5)
    model.lstm = home.LSTM(5, 8, 2, batch_first=True, bidirectional=True)
    model.score = home.Sequential(home.Linear(16, 6), home.Tanh(), home.Linear(6, 1))
    model.gru = home.GRU(16, 6, batch_first=True, bidirectional=True)
    model.small = home.LSTM(16, 7, batch_first=True, proj_size=3)
    model.plain = home.RNN(16, 5, batch_first=True)
    model.head = home.Linear(16 + 12 + 3 + 5, 3)


def apply_recurrences(model: Any, x: Any, cat: Any) -> Any:
    states, _ = model.lstm(model.norm(x))
    seen = (states * model.score(states).softmax(1)).sum(1)
    _, last = model.gru(states)
    _, (projected, _) = model.small(states)
    plain, _ = model.plain(states)
    return model.head(cat([seen, last[0], last[1], projected[0], plain[:, -1]], -1))


class Recurrences(nn.Module):
    """add_recurrences under hotloop's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_recurrences(self, nn)

    def forward(self, x: Any) -> Any:
        return apply_recurrences(self, x, hl.cat)


class TorchRecurrences(torch.nn.Module):
    """The same body under torch's Module."""

    def __init__(self) -> None:
        super().__init__()
        add_recurrences(self, torch.nn)

    def forward(self, x: Any) -> Any:
        return apply_recurrences(self, x, torch.cat)


def add_lengths(model: Any, home: Any) -> None:
    model.table = home.Embedding(23, 8, padding_idx=0)
    model.gru = home.GRU(8, 10, 2, batch_first=True, bidirectional=True)
    model.head = home.Linear(20, 4)


class Lengths(nn.Module):
    """Tokens up to a padding; hotloop takes the lengths."""

    def __init__(self) -> None:
        super().__init__()
        add_lengths(self, nn)

    def forward(self, x: Any) -> Any:
        states, _ = self.gru(self.table(x), lengths=(x != 0).sum(1))
        return self.head(states.sum(1))


class TorchLengths(torch.nn.Module):
    """The same, packed."""

    def __init__(self) -> None:
        super().__init__()
        add_lengths(self, torch.nn)

    def forward(self, x: Any) -> Any:
        rnn = torch.nn.utils.rnn
        lengths = (x != 0).sum(1)
        packed = rnn.pack_padded_sequence(self.table(x), lengths, True, enforce_sorted=False)
        states, _ = rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=6)
        return self.head(states.sum(1))


def sequence_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((256, 7, 5)).astype("float32")
    return X, (X[:, 0, 0] > 0).astype(int) + (X[:, -1, 1] > 0)


def wide_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((128, 5, 29)).astype("float32")
    return X, (X[:, 0, 0] > 0).astype(int) + (X[:, -1, 1] > 0)


def text_data() -> tuple[np.ndarray, np.ndarray]:
    """Tokens, and the next ones: a walk over 23 of them."""
    walk = np.cumsum(np.random.default_rng(0).integers(0, 3, 500)) % 23
    windows = np.lib.stride_tricks.sliding_window_view(walk, 7)[:256]
    return windows[:, :-1], windows[:, 1:]


def prefix_data() -> tuple[np.ndarray, np.ndarray]:
    """Tokens, then 0 from a length of 1 to 6 on."""
    X = 1 + token_data()[0] % 22
    X[np.arange(6) >= 1 + np.arange(256)[:, None] % 6] = 0
    return X, X.sum(1) % 4


def image_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(256) % 4
    X = rng.standard_normal((256, 3, 8, 8)).astype("float32")
    X[:, 0] += (y % 2)[:, None, None]
    X[:, 1, :4] += (y // 2)[:, None, None]
    return X, y


def image_targets() -> tuple[np.ndarray, np.ndarray]:
    X = image_data()[0]
    return X, np.ascontiguousarray(X[:, ::-1])


def token_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 23, (256, 6))
    return X, X.sum(1) % 4


def padded_data() -> tuple[np.ndarray, np.ndarray]:
    """Tokens of which 0 is padding, never the first one."""
    X = token_data()[0]
    X[X % 5 == 4] = 0
    X[:, 0] = 1 + X[:, 1] % 4
    return X, X.sum(1) % 4


NETS: dict[str, tuple[Any, Any, Any, Any]] = {
    "batch norm": (
        lambda: batch_norm_net(nn),
        lambda: batch_norm_net(torch.nn),
        lambda: classes(256, 20, 3),
        torch.nn.functional.cross_entropy,
    ),
    "residual": (Residual, TorchResidual, token_data, torch.nn.functional.cross_entropy),
    "attention": (Attention, TorchAttention, padded_data, torch.nn.functional.cross_entropy),
    "recurrences": (
        Recurrences, TorchRecurrences, sequence_data, torch.nn.functional.cross_entropy,
    ),
    "lengths": (Lengths, TorchLengths, prefix_data, torch.nn.functional.cross_entropy),
    "transformer": (
        lambda: models.transformer_classifier(29, 3, 24, 2, 1, 40, dropout=0.0, input_dropout=0.0),
        lambda: test_sequence_models.Transformer(24, 2, 1, 40), wide_data,
        torch.nn.functional.cross_entropy,
    ),
    "tcn": (
        lambda: models.tcn(29, 3, (12, 8), 2, dropout=0.0),
        lambda: test_sequence_models.TCN(29, 12, 8, kernel=2), wide_data,
        torch.nn.functional.cross_entropy,
    ),
    "gpt": (
        lambda: models.gpt(23, 6, 2, 2, 16), lambda: test_gpt.make_gpt(23, 6, 2, 2, 16), text_data,
        lambda output, y: torch.nn.functional.cross_entropy(output.flatten(0, 1), y.flatten()),
    ),
    "logistic": (
        lambda: nn.Linear(20, 3),
        lambda: torch.nn.Linear(20, 3),
        lambda: classes(256, 20, 3),
        torch.nn.functional.cross_entropy,
    ),
    "images, batch norm": (
        lambda: conv_net(nn), lambda: conv_net(torch.nn), image_data,
        torch.nn.functional.cross_entropy,
    ),
    "images, depthwise": (
        lambda: depthwise_net(nn), lambda: depthwise_net(torch.nn), image_data,
        torch.nn.functional.cross_entropy,
    ),
    "images, residual": (
        ResidualImages, TorchResidualImages, image_data, torch.nn.functional.cross_entropy,
    ),
    "images, autoencoder": (
        lambda: image_autoencoder(nn), lambda: image_autoencoder(torch.nn), image_targets,
        torch.nn.functional.mse_loss,
    ),
    "linear": (
        lambda: nn.Linear(5, 2),
        lambda: torch.nn.Linear(5, 2),
        lambda: regression(256, 5, 2),
        torch.nn.functional.mse_loss,
    ),
}  # fmt: skip
OPTIMIZERS = {
    "sgd": (
        {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9},
        lambda p: torch.optim.SGD(p, 0.05, 0.9),
    ),
    "adam": ({"optimizer": "adam", "lr": 1e-2}, lambda p: torch.optim.Adam(p, 1e-2)),
    "adamw": (
        {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1, "decay_norm_and_bias": True},
        lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    ),
    "rmsprop": ({"optimizer": "rmsprop", "lr": 1e-3}, lambda p: torch.optim.RMSprop(p, 1e-3)),
}


def run(net: str, optimizer: str, precision: str, steps: int) -> tuple[Any, ...]:
    """Both trajectories: (losses, weights, logits) of hotloop and of torch."""
    make, make_twin, data_of, loss_of = NETS[net]
    fields, make_optimizer = OPTIMIZERS[optimizer]
    X, y = data_of()
    data = hl.DataModule.from_arrays(X, y, batch_size=32)
    model, twin = make(), make_twin()
    copy_weights(model, twin)
    dtype = torch.float64 if precision == "64-true" else torch.float32
    twin.to(dtype).train()
    torch_optimizer = make_optimizer(twin.parameters())
    step = hl.stepper(model, quiet(max_epochs=50, precision=precision, **fields), data)
    ours, theirs = [], []
    done = 0
    for epoch in range(50):
        for batch in data.train_batches(epoch):
            x = torch.from_numpy(batch["x"].copy())
            goal = torch.from_numpy(batch["y"].copy())
            x = x.to(dtype) if x.is_floating_point() else x
            goal = goal.to(dtype) if goal.is_floating_point() else goal
            torch_optimizer.zero_grad()
            loss = loss_of(twin(x), goal)
            loss.backward()
            torch_optimizer.step()
            theirs.append(loss.item())
            ours.append(step.step(batch)["loss"])
            done += 1
            if done == steps:
                break
        if done == steps:
            break
    read, slots = step._runtime.session.read, step._runtime.layout.trainable
    flat = np.concatenate([read("param", "float64", slot.offset, slot.size) for slot in slots])
    twin_flat = np.concatenate([p.detach().double().numpy().ravel() for p in twin.parameters()])
    twin.eval()
    inputs = torch.from_numpy(X.copy())
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    return ours, theirs, flat, twin_flat, step.sync()(X), twin(inputs).detach().numpy()


@pytest.mark.parametrize("net", NETS)
def test_sgd_float32(net: str) -> None:
    ours, theirs, flat, twin_flat, out, twin_out = run(net, "sgd", "32-true", 40)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(flat, twin_flat, rtol=0, atol=2e-4)
    np.testing.assert_allclose(out, twin_out, rtol=0, atol=5e-3)


# Sinusoidal positions are float32 numbers, in hotloop's graph and in torch's not the same ones.
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", [net for net in NETS if net != "transformer"])
def test_float64(net: str, optimizer: str) -> None:
    """1e-9 is a million roundings: 40 steps of nets with gradients near 1 stay far below."""
    ours, theirs, flat, twin_flat, out, twin_out = run(net, optimizer, "64-true", 40)
    zero_gradients = net == "batch norm" and optimizer != "sgd"
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    if not zero_gradients:
        np.testing.assert_allclose(flat, twin_flat, rtol=0, atol=1e-9)
    np.testing.assert_allclose(out, twin_out, rtol=0, atol=1e-4)
