"""docs/porting.md: its module runs, and its table is true."""

import re
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import quiet

PAGE = Path(__file__).parents[2] / "docs" / "porting.md"


@pytest.fixture(scope="module")
def encoding():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    exec(code, names)
    return names["PositionalEncoding"]


def test_the_module_gives_the_papers_numbers(encoding) -> None:
    """Vaswani et al., Attention Is All You Need, 2017, section 3.5."""
    model = encoding(8, max_len=50)
    got = model(np.zeros((2, 5, 8), np.float32))
    for pos in range(5):
        for i in range(4):
            angle = pos / 10000 ** (2 * i / 8)
            np.testing.assert_allclose(got[:, pos, 2 * i], np.sin(angle), atol=1e-6)
            np.testing.assert_allclose(got[:, pos, 2 * i + 1], np.cos(angle), atol=1e-6)
    assert list(model.state_dict()) == ["pe"]


def test_the_module_trains(encoding) -> None:
    """Which token of 6 is 1: only its place tells."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(2, 8)
            self.place = encoding(8, dropout=0.0, max_len=6)
            self.head = nn.Linear(8, 6)

        def forward(self, x):
            places = hl.arange(x.size(1)).unsqueeze(0).float()
            return self.head((hl.tanh(self.place(self.embed(x))) + 0.0 * places[..., None]).sum(1))

    place = np.arange(300) % 6
    tokens = (np.arange(6) == place[:, None]).astype(np.int64)
    result = hl.train(Net(), (tokens, place), quiet(max_epochs=60, lr=0.03, optimizer="adam"))
    assert hl.evaluate(result, (tokens, place))["accuracy"] > 0.9


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.register_buffer("count", np.zeros(1, np.float32))

    def forward(self, x):
        self.count.assign(self.count + 1)
        return self.line(x)


def test_a_buffer_counts_by_assign() -> None:
    rng = np.random.default_rng(0)
    model = Counting()
    hl.train(model, (rng.random((40, 4)), rng.random(40)), quiet(max_epochs=3))
    assert model.count.numpy().tolist() == [3.0]


def test_functions_of_forward_compute_on_arrays() -> None:
    np.testing.assert_allclose(hl.exp(hl.arange(5)), np.exp(np.arange(5)), rtol=1e-6)
    assert hl.unsqueeze(hl.arange(5), 1).shape == (5, 1)
