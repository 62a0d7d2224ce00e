"""What is said of inputs that are no batch of the model's."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.tools.cli import main
from needs import take_library
from train.recipes import quiet

IMAGES = np.random.default_rng(0).standard_normal((8, 3, 6, 6)).astype(np.float32)
HUGE = np.broadcast_to(np.zeros((1, 3, 32, 32), np.float32), (10**9, 3, 32, 32))


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))


@pytest.mark.filterwarnings("ignore::hotloop.ModelWarning")
@pytest.mark.parametrize("call", [lambda model, x: model(x), hl.predict])
def test_one_image_for_a_model_that_was_not_trained(call) -> None:
    """Nothing says then that the first dim is no dim of rows."""
    with pytest.raises(hl.ShapeError, match=r"seems to be one row: give a batch of it, x\[None\]$"):
        call(net(), IMAGES[0])
    with pytest.raises(hl.ShapeError) as error:  # a row of it does not fit either
        call(net(), IMAGES[0, :2])
    assert "x[None]" not in str(error.value)
    model = net()
    hl.train(model, (IMAGES, np.arange(8) % 2), quiet(max_epochs=1))
    assert call(model, IMAGES[0]).shape == (2,)


def test_a_dict_for_one_array() -> None:
    model = net()
    with pytest.raises(hl.TraceError, match="got a dict of 'x'; take it apart"):
        hl.predict(model, {"x": IMAGES})
    hl.train(model, (IMAGES, np.arange(8) % 2), quiet(max_epochs=1))
    for call in (model, lambda data: hl.predict(model, data)):
        with pytest.raises(hl.DataError, match=r"x must be one array as in .* a dict of 'x', 'b'"):
            call({"x": IMAGES, "b": IMAGES})


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: hl.predict(net(), HUGE), "input"),
        (lambda: net()(HUGE), "input"),
        (lambda: hl.DataModule.from_arrays(HUGE), "X"),
        (lambda: hl.DataModule.from_arrays(np.zeros((4, 3)), HUGE), "y"),
    ],
)
def test_no_room_for_a_copy(call, name) -> None:
    with pytest.raises(hl.OutOfMemoryError, match=rf"^{name}: needs a copy .* out of memory"):
        call()


def test_places_that_there_are_none_of() -> None:
    for place in ("T4", "tpu", "fp23"):
        with pytest.raises(hl.ConfigError, match=rf"^to: device must be .*, got '{place}'$"):
            net().to(place)
    model = net()
    assert model.to("float32") is model


def test_a_file_of_torch_is_inspected(tmp_path, capsys) -> None:
    torch = take_library("torch")
    file = tmp_path / "m.pth"
    torch.save({"state": torch.nn.Linear(3, 2).state_dict()}, file)
    assert main(["inspect", str(file)]) == 0
    out = capsys.readouterr().out
    assert "written by torch.save" in out
    assert "weight  F32  (2, 3)  6" in out
    file.write_bytes(b"no weights")
    assert main(["inspect", str(file)]) == 1
    assert "m.pth" in capsys.readouterr().err
