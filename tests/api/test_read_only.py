"""Arrays that a model hands out: a write to one would not reach the model, so it is refused."""

import copy
import pickle

import hotloop as hl
import numpy as np
import pytest
from hotloop import ConfigError, nn

ARRAYS = {
    "numpy()": lambda net: net.weight.numpy(),
    "a buffer's numpy()": lambda net: net.shift.numpy(),
    "data": lambda net: net.weight.data,
    "data.cpu().numpy()": lambda net: net.weight.data.detach().cpu().numpy(),
    "state_dict": lambda net: net.state_dict()["weight"],
    "a row": lambda net: net.weight.numpy()[1],
    "a view": lambda net: net.weight.numpy().reshape(-1).T,
    "an iteration": lambda net: next(iter(net.weight.numpy())),
    "a loaded model's state_dict": lambda net: net.loaded.state_dict()["weight"],
}


def add_in_place(array):
    array += 1


def divide_a_part(array):
    array[..., 1:] /= 2


def multiply_by_out(array):
    np.multiply(array, 2, out=array)


WRITES = {
    "[0] =": lambda array: array.__setitem__(0, 7),
    "[...] =": lambda array: array.__setitem__(..., 7),
    "+=": add_in_place,
    "/= of a part": divide_a_part,
    "out=": multiply_by_out,
    "fill": lambda array: array.fill(7),
    "sort": lambda array: array.sort(),
    "put": lambda array: array.put(0, 7),
    "copy_": lambda array: array.copy_(7),
    "zero_": lambda array: array.zero_(),
}


@pytest.fixture
def net(tmp_path):
    made = nn.Linear(3, 3)
    made.register_buffer("shift", np.arange(9.0).reshape(3, 3))
    hl.train(made, (np.ones((4, 3), np.float32),) * 2, max_epochs=1, enable_progress_bar=False)
    hl.save(made, tmp_path / "net.safetensors")
    object.__setattr__(made, "loaded", hl.load(tmp_path / "net.safetensors"))
    return made


@pytest.mark.parametrize("take", ARRAYS.values(), ids=ARRAYS.keys())
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_says_how_to_set_values(net, take, write):
    before = np.array(net.weight)
    with pytest.raises(ConfigError, match=r"is read-only.*parameter\.copy_\(array\).*\.copy\(\)"):
        write(take(net))
    np.testing.assert_array_equal(net.weight, before)


@pytest.mark.parametrize("dtype", [None, np.float32])
def test_a_plain_array_of_a_parameter_cannot_be_written_to(net, dtype):
    for array in (np.asarray(net.weight, dtype), np.asarray(net.state_dict()["weight"])):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_data_has_what_scripts_for_torch_use(net):
    plain = np.array(net.weight)
    np.testing.assert_array_equal(net.weight.data.mean(dim=0), plain.mean(0))
    assert net.weight.data.argmax(dim=1).shape == (3,)
    with pytest.raises(AttributeError, match=r"no 'norm'; write np\.linalg\.norm"):
        net.weight.data.norm()
    assert repr(net.weight.data) == repr(plain)


OWN = {
    "copy": lambda p: p.numpy().copy(),
    "array": lambda p: np.array(p),
    "asarray of another dtype": lambda p: np.asarray(p, np.float64),
    "astype": lambda p: p.numpy().astype(np.float64),
    "a product": lambda p: p.numpy() * 2,
    "a sum of rows": lambda p: p.numpy().sum(0),
    "rows by number": lambda p: p.numpy()[[0, 1]],
    "a deep copy": lambda p: copy.deepcopy(p.numpy()),
    "a pickle": lambda p: pickle.loads(pickle.dumps(p.numpy())),
    "a concatenation": lambda p: np.concatenate([p.numpy(), p.numpy()]),
}


@pytest.mark.parametrize("make", OWN.values(), ids=OWN.keys())
def test_what_is_made_of_a_value_is_the_users_own(net, make):
    before = np.array(net.weight)
    mine = make(net.weight)
    mine[0] = 7
    mine += 1
    assert (mine[0] == 8).all()
    np.testing.assert_array_equal(net.weight, before)


def test_a_state_stays_as_it_was_and_can_be_changed_and_loaded(net):
    state = net.state_dict()
    kept = {key: value.copy() for key, value in state.items()}
    net.weight.copy_(np.zeros((3, 3)))
    np.testing.assert_array_equal(state["weight"], kept["weight"])
    state["weight"] = 0.5 * state["weight"]
    net.load_state_dict(state)
    np.testing.assert_array_equal(net.weight, 0.5 * kept["weight"])
