"""Recurrences that are written as loops over the steps of a value.

However steps are read, what is trained is the same. How it is planned (one node for all of them,
gradients that are joined, steps that are read where they lie) is held by tests/null; gradients by
tests/ops.
"""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from train.recipes import exact, quiet

RNG = np.random.default_rng(5)
X = RNG.normal(size=(96, 12, 16)).astype(np.float32)
Y = RNG.integers(0, 3, 96)

READS = {
    "slices": lambda u: [u[:, t] for t in range(12)],
    "unbind": lambda u: u.unbind(1),
    "split": lambda u: [part.squeeze(1) for part in u.split(1, 1)],
    "chunk": lambda u: [part[:, t] for part in u.chunk(3, 1) for t in range(4)],
    "leading": lambda u: list(u.transpose(0, 1)),
    "leading slices": lambda u: [u.transpose(0, 1)[t] for t in range(12)],
    "mostly": lambda u: [u[:, t] for t in range(11)] + [hl.zeros_like(u[:, 0])],
    "few": lambda u: [u[:, 2], u[:, 7]],
    "windows": lambda u: [u[:, t : t + 3].mean(1) for t in range(10)],
    "strided": lambda u: [u[:, t::3].mean(1) for t in range(3)],
}


class Loop(nn.Module):
    """A tanh recurrence; ``gather`` reads the steps by index, which no rule about parts touches."""

    def __init__(self, read):
        super().__init__()
        self.pre, self.cell, self.head = nn.Linear(16, 16), nn.Linear(24, 8), nn.Linear(8, 3)
        self.read = read

    def forward(self, x):
        h, states = hl.zeros((x.shape[0], 8)), []
        for step in self.read(self.pre(x).tanh()):
            h = self.cell(hl.cat([h, step], 1)).tanh()
            states.append(h)
        return self.head(hl.stack(states, 1).mean(1))


def by_index(u, places):
    """Steps as rows that are picked."""
    return u.index_select(1, hl.tensor(np.asarray(places)))


PLAIN = {
    "mostly": lambda u: [by_index(u, [t]).sum(1) for t in range(11)] + [hl.zeros_like(u[:, 0])],
    "few": lambda u: [by_index(u, [t]).sum(1) for t in (2, 7)],
    "windows": lambda u: [by_index(u, range(t, t + 3)).mean(1) for t in range(10)],
    "strided": lambda u: [by_index(u, range(t, 12, 3)).mean(1) for t in range(3)],
}
EVERY = lambda u: [by_index(u, [t]).sum(1) for t in range(12)]  # noqa: E731


def trained(read, config):
    hl.manual_seed(7)
    model = Loop(read)
    hl.train(model, hl.DataModule.from_arrays(X, Y, batch_size=32), config)
    return model.state_dict()


@pytest.mark.parametrize("read", READS)
def test_steps_may_be_read_in_any_way(read: str) -> None:
    """In float64, against rows picked by index, whose gradient is a sum over the whole value."""
    config = exact(max_epochs=2)
    got, want = trained(READS[read], config), trained(PLAIN.get(read, EVERY), config)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("read", ["unbind", "split", "leading", "leading slices"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_same_bits_in_any_way(read: str, precision: str) -> None:
    """Copies and zeros change no bit."""
    config = quiet(max_epochs=2, precision=precision)
    got, want = trained(READS[read], config), trained(READS["slices"], config)
    for name, value in want.items():
        assert np.array_equal(got[name], value), name
