"""max_norm of embeddings beside torch: the table after some steps of SGD, and what it gives."""

import math
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import take_library

torch = take_library("torch")

ROWS, WIDTH, OUT = 12, 4, 5
RNG = np.random.default_rng(3)
TABLE = 1.3 * RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
IDS = RNG.integers(0, 9, (40, 3))  # rows 9 to 11 are never looked up
IDS[:, 1] = IDS[:, 0]  # each sample has a row twice
Y = RNG.normal(size=(40, OUT)).astype(np.float32)


class Net(nn.Module):
    """An embedding and a layer; ``kind`` says what else is done with its table."""

    def __init__(self, home: Any, kind: str, **settings: Any) -> None:
        super().__init__()
        build(self, home, kind, settings)

    def forward(self, x: Any) -> Any:
        return apply(self, x.long())


class Twin(torch.nn.Module):
    """The same in torch."""

    def __init__(self, home: Any, kind: str, **settings: Any) -> None:
        super().__init__()
        build(self, home, kind, settings)

    def forward(self, x: Any) -> Any:
        return apply(self, x)


def build(net: Any, home: Any, kind: str, settings: dict[str, Any]) -> None:
    net.kind = kind
    made = home.EmbeddingBag if kind in ("sum", "mean", "max") else home.Embedding
    more = {"mode": kind} if kind in ("sum", "mean", "max") else {}
    table = TABLE.copy() if home is nn else torch.tensor(TABLE)
    net.table = made(ROWS, WIDTH, _weight=table, **more, **settings)
    net.head = home.Linear(WIDTH, OUT)
    if kind == "frozen":
        net.table.weight.requires_grad_(False)


def apply(net: Any, ids: Any) -> Any:
    if net.kind in ("sum", "mean", "max"):
        return net.head(net.table(ids))
    rows = net.table(ids).sum(1)
    if net.kind == "twice":
        rows = rows + net.table(ids[:, :1]).sum(1)
    if net.kind == "tied":  # the whole table, behind the look-up
        return net.head(rows) + (rows @ net.table.weight.T)[:, :OUT]
    return net.head(rows)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"norm {p}": ("plain", {"norm_type": p}) for p in (0.0, 0.5, 1.0, 2.0, 3.0, math.inf)},
    "padding": ("plain", {"padding_idx": 2}),
    "long enough": ("plain", {"max_norm": 100.0}),
    "zero": ("plain", {"max_norm": 0.0}),
    **{kind: (kind, {}) for kind in ("sum", "mean", "max", "twice", "tied", "frozen")},
    "bag with padding": ("mean", {"padding_idx": 3, "norm_type": 1.0}),
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_steps(case: str, accumulate: int) -> None:
    kind, settings = CASES[case]
    settings = {"max_norm": 1.1} | settings
    net, twin = Net(nn, kind, **settings), Twin(torch.nn, kind, **settings)
    twin.load_state_dict({k: torch.tensor(v.copy()) for k, v in net.state_dict().items()})
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(3):
        total = 0.0
        for begin in range(0, 40, 10):
            here = slice(begin, begin + 10)
            loss = ((twin(torch.tensor(IDS[here])) - torch.tensor(Y[here])) ** 2).mean()
            (loss / accumulate).backward()
            total += float(loss) / 4
            if (begin // 10 + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        losses.append(total)
    data = hl.DataModule.from_arrays(IDS, Y, batch_size=10, shuffle=False, val=0)
    result = hl.train(
        net, data, max_epochs=3, optimizer="sgd", lr=0.1, weight_decay=0.0, scheduler="constant",
        warmup=0, gradient_clip_val=None, precision=32, accelerator="cpu",
        accumulate_grad_batches=accumulate, enable_progress_bar=False,
    )  # fmt: skip
    np.testing.assert_allclose(result.history["loss"], losses, rtol=1e-5)
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    changed = (net.table.weight.numpy() != TABLE).any(1)
    assert not changed[9:].any() or kind == "tied"
    assert changed[:9].any() == (case != "long enough" or kind != "frozen")
    before = net.table.weight.numpy().copy()
    with torch.no_grad():
        want = twin.eval()(torch.tensor(IDS))
    np.testing.assert_allclose(net(IDS), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(net.table.weight.numpy(), before)  # prediction leaves it alone


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_functions(norm_type: float) -> None:
    """An array stays as it is, in torch it changes; a parameter changes in both."""
    F = nn.functional
    given = torch.tensor(TABLE)
    settings = {"max_norm": 0.7, "norm_type": norm_type}
    want = torch.nn.functional.embedding(torch.tensor(IDS), given, **settings)
    array = TABLE.copy()
    np.testing.assert_allclose(F.embedding(IDS, array, **settings), want, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(array, TABLE)
    parameter = nn.Parameter(TABLE)
    F.embedding(IDS, parameter, **settings)
    np.testing.assert_allclose(parameter.numpy(), given, rtol=1e-6, atol=1e-7)
    bags = torch.nn.functional.embedding_bag(torch.tensor(IDS), torch.tensor(TABLE), **settings)
    got = F.embedding_bag(IDS, array, **settings)
    np.testing.assert_allclose(got, bags, rtol=1e-5, atol=1e-6)
