"""A forward that does not do the same each time it is called: each recording of it is a plan."""

import random
import time
import warnings

import hotloop as hl
import hotloop.nn.functional as F
import numpy as np
import pytest
from hotloop import TraceError, nn
from needs import take_library

X = np.random.default_rng(0).standard_normal((48, 4)).astype(np.float32)
GENERATOR = np.random.default_rng(1)
NOISE = np.zeros((4,), np.float32)


class Net(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.change = change

    def forward(self, x):
        return self.change(self.layer(x))


def write_noise(h):
    NOISE[:] = GENERATOR.standard_normal(4)  # the same array, with other contents
    return h + NOISE


def late_element(h):
    noise = np.zeros(h.shape, np.float32)
    noise[-1, -1] = GENERATOR.random()
    return h + noise


IMPURE = {
    "an array of NumPy's": lambda h: h + np.random.standard_normal(h.shape),
    "an array of a generator's": lambda h: h + GENERATOR.standard_normal(h.shape),
    "an array written in place": write_noise,
    "an array whose last element differs": late_element,
    "an array that differs below float32": lambda h: h + (1 + 1e-12 * GENERATOR.random(h.shape)),
    "a mask": lambda h: h.masked_fill(GENERATOR.random(h.shape) < 0.5, 0.0),
    "a condition": lambda h: hl.where(GENERATOR.random(h.shape) < 0.5, h, 0.0),
    "an order of rows": lambda h: h[GENERATOR.permutation(h.shape[0])],
    "a list": lambda h: h + hl.tensor([random.random() for _ in range(4)]),
    "a Python number": lambda h: h * random.random(),
    "a NumPy number": lambda h: h * np.float32(GENERATOR.random()),
    "the clock": lambda h: h - time.time(),
    "a bound": lambda h: h.clamp(-random.random(), 1.0),
    "a probability": lambda h: F.dropout(h, random.random(), training=True),
    "a size": lambda h: hl.cat([h, hl.zeros(h.shape[0], next(SIZES))], 1)[:, :4],
}
SIZES = iter(range(1, 1000))


@pytest.mark.parametrize("change", IMPURE.values(), ids=IMPURE.keys())
def test_what_differs_between_two_recordings_is_refused(change):
    with pytest.raises(TraceError, match=r"must do the same each time.*hl\.rand, hl\.randn"):
        Net(change)(X)
    with pytest.raises(TraceError, match="must do the same each time"):
        hl.train(Net(change), (X, X), max_epochs=1, enable_progress_bar=False)


@pytest.mark.parity
def test_torch_tensors_are_compared_too():
    torch = take_library("torch")
    with pytest.raises(TraceError, match="must do the same each time"):
        Net(lambda h: h + torch.rand(4))(X)


def test_the_refusal_names_the_module_and_the_element():
    inner = Net(late_element)
    with pytest.raises(
        TraceError,
        match=r"constant made in module 1 of shape \(48, 4\) whose element 191 was 0\.\d+, and 0\.",
    ):
        nn.Sequential(nn.Linear(4, 4), inner)(X)


def test_a_loss_is_part_of_the_recording():
    with pytest.raises(TraceError, match="must do the same each time"):
        hl.train(
            nn.Linear(4, 4),
            (X, X),
            loss=lambda out, y: ((out - y - np.random.standard_normal(y.shape)) ** 2).mean(),
            max_epochs=1,
            enable_progress_bar=False,
        )


def test_numbers_from_a_seed_of_forwards_own_are_constants():
    def change(h):
        return h + np.random.default_rng(7).standard_normal(h.shape)

    def seeded(h):
        np.random.seed(3)
        random.seed(3)
        return h * np.random.rand() + random.random()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net(change)(X)
        Net(seeded)(X)
        Net(lambda h: h + np.nan)(X)


@pytest.mark.parametrize(
    ("draw", "name"), [(random.random, "random"), (np.random.rand, r"np\.random")]
)
def test_a_branch_chosen_at_random_warns_where_it_came_out_the_same(draw, name):
    with pytest.warns(hl.ModelWarning, match=rf"recorded while {name} drew.*hl\.where") as found:
        Net(lambda h: h if draw() >= 0.0 else -h)(X)
    assert found[0].filename == __file__


def test_randperm_in_forward_is_another_order_in_each_step():
    class Shuffled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.register_buffer("order", np.zeros(16, np.int64))
            self.register_buffer("weights", np.arange(1, 17))
            self.register_buffer("seen", np.zeros((), np.int64))

        def forward(self, x):
            order = hl.randperm(16)
            self.order.assign(order)
            self.seen.assign(self.seen + (order * self.weights).sum())
            return self.layer(x[order])

    x = np.arange(16, dtype=np.float32)[:, None]
    model = Shuffled()
    data = hl.DataModule.from_arrays(x, x, batch_size=16, val=None)
    hl.train(model, data, max_epochs=2, enable_progress_bar=False)
    last = model.order.numpy()
    assert sorted(last) == list(range(16)) != list(last)
    assert int(model.seen) != 2 * int((last * np.arange(1, 17)).sum())  # the first was another
