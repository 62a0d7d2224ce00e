"""nn.init: each scheme's distribution, lazily drawn on parameters and at once on arrays."""

import math

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError, ShapeError
from hotloop.nn import init

SHAPE = (60, 40, 3)
FAN_IN, FAN_OUT = 120, 180


def uniform(std):
    return std, std * math.sqrt(3)


@pytest.mark.parametrize(
    ("fill", "std", "most"),
    [
        (lambda p: init.uniform_(p, -2, 2), *uniform(2 / math.sqrt(3))),
        (lambda p: init.normal_(p, 0, 0.3), 0.3, 6 * 0.3),
        (lambda p: init.xavier_uniform_(p), *uniform(math.sqrt(2 / (FAN_IN + FAN_OUT)))),
        (lambda p: init.xavier_normal_(p, 2.0), 2 * math.sqrt(2 / (FAN_IN + FAN_OUT)), 1.0),
        (lambda p: init.kaiming_uniform_(p), *uniform(math.sqrt(2 / FAN_IN))),
        (
            lambda p: init.kaiming_uniform_(p, math.sqrt(5)),
            *uniform(math.sqrt(1 / FAN_IN / 3)),
        ),
        (
            lambda p: init.kaiming_normal_(p, mode="fan_out", nonlinearity="relu"),
            math.sqrt(2 / FAN_OUT),
            1.0,
        ),
        (lambda p: init.trunc_normal_(p, std=1.0), 0.8796, 2.0),
    ],
)
def test_distribution(fill, std, most):
    parameter = nn.Parameter(hl.zeros(SHAPE))
    assert fill(parameter) is parameter
    assert not parameter.is_drawn
    values = parameter.numpy()
    assert abs(values.std() / std - 1) < 0.04
    assert abs(values.mean()) < 4 * std / math.sqrt(values.size)
    assert abs(values).max() <= most * (1 + 1e-6)
    array = hl.empty(SHAPE)
    assert fill(array) is array
    assert abs(array.std() / std - 1) < 0.04


def test_constants_and_structure():
    square = nn.Parameter(hl.zeros(4, 6))
    assert (init.ones_(square).numpy() == 1).all()
    assert (init.zeros_(square).numpy() == 0).all()
    assert (init.constant_(square, 0.5).numpy() == 0.5).all()
    np.testing.assert_array_equal(init.eye_(square).numpy(), np.eye(4, 6))
    for shape in ((4, 6), (6, 4), (5, 3, 2)):
        q = init.orthogonal_(nn.Parameter(hl.zeros(shape)), 2.0).numpy().reshape(shape[0], -1)
        gram = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-5)
    sparse = init.sparse_(nn.Parameter(hl.zeros(10, 7)), 0.25).numpy()
    assert ((sparse == 0).sum(0) == 3).all()
    dirac = init.dirac_(nn.Parameter(hl.zeros(6, 3, 3)), groups=2).numpy()
    want = np.zeros((6, 3, 3))
    for i in range(6):
        want[i, i % 3, 1] = 1
    np.testing.assert_array_equal(dirac, want)


def test_gains():
    gains = {"linear": 1, "conv2d": 1, "sigmoid": 1, "tanh": 5 / 3, "relu": 2**0.5, "selu": 0.75}
    for name, gain in gains.items():
        assert init.calculate_gain(name) == pytest.approx(gain)
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(math.sqrt(2 / 1.04))
    with pytest.raises(ConfigError, match="did you mean 'relu'"):
        init.calculate_gain("rellu")


def test_errors():
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        init.xavier_uniform_(nn.Parameter(hl.zeros(3)))
    with pytest.raises(ConfigError, match="fan_in"):
        init.kaiming_normal_(nn.Parameter(hl.zeros(3, 3)), mode="fan")
    with pytest.raises(ConfigError, match="parameter"):
        init.ones_([1, 2])
    with pytest.raises(ConfigError, match="groups"):
        init.dirac_(nn.Parameter(hl.zeros(5, 3, 3)), groups=2)


def test_arrays_draw_from_the_global_seed():
    hl.manual_seed(1)
    a, b = init.normal_(hl.empty(50)), init.normal_(hl.empty(50))
    hl.manual_seed(1)
    np.testing.assert_array_equal(a, init.normal_(hl.empty(50)))
    assert not np.array_equal(a, b)


def test_embedding_and_norm_defaults():
    table = nn.Embedding(50, 40, padding_idx=-1)
    values = table.weight.numpy()
    assert table.padding_idx == 49
    assert (values[49] == 0).all()
    assert abs(values[:49].std() - 1) < 0.06
    norm = nn.BatchNorm1d(3)
    assert (norm.weight.numpy() == 1).all()
    assert (norm.running_var.numpy() == 1).all()
    assert float(nn.PReLU().weight) == 0.25
