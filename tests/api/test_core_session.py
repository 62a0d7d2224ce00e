"""The core's Session from Python: stores, conversions, the control block; devices."""

import math
from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors


@pytest.fixture(params=["cpu", "ref"])
def session(request: pytest.FixtureRequest) -> _core.Session:
    return _core.Session(_core.Device(request.param))


def test_devices() -> None:
    assert _core.backends() == ("null", "ref", "cpu", "cuda")
    everywhere = ["null", "ref", "cpu"]
    assert [_core.Device(name).backend for name in everywhere] == everywhere
    assert "matmul" in _core.Device("ref").ops
    device = _core.Device("cpu", n_threads=1, isa="portable")
    assert (device.n_threads, device.float_dtype) == (1, "float32")
    assert "portable" in device.name
    assert _core.Device("ref").float_dtype == "float64"
    assert repr(device) == f"Device('cpu', {device.name!r})"
    assert _core.cpu_info()["isa"][-1] == "portable"
    wrong: list[tuple[type[Exception], Any]] = [
        (errors.DeviceError, lambda: _core.Device("cuda13")),
        (errors.HotloopError, lambda: _core.Device("cpu", isa="sse9")),
        (errors.ConfigError, lambda: _core.Device("cpu", n_threads=-1)),
        (errors.ConfigError, lambda: _core.Device("cpu", n_threads=10**9)),
        (errors.ConfigError, lambda: _core.Device("cpu", -1)),
        (TypeError, lambda: _core.Device()),
        (TypeError, lambda: _core.Device("cpu", backend="cpu")),
        (TypeError, lambda: _core.Device("cpu", threads=1)),
        (TypeError, lambda: _core.Session("cpu")),
        (AttributeError, lambda: setattr(device, "name", "x")),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_write_and_read(session: _core.Session, dtype: str) -> None:
    session.store("a", dtype, 12)
    values = np.arange(12).astype(dtype).reshape(3, 4)
    session.write("a", values)
    assert (session.read("a", dtype) == values.ravel()).all()
    assert session.read("a", "float64", 5, 3).tolist() == values.ravel()[5:8].tolist()
    session.write("a", values[:, ::-1][:1], 8)
    assert (session.read("a", dtype, 8) == values[0, ::-1]).all()
    session.write("a", values.astype(values.dtype.newbyteorder(">")))
    assert (session.read("a", dtype) == values.ravel()).all()
    assert session.read("a", dtype, 12).shape == (0,)
    held = "float64" if session.stores()["a"][0] == "float64" else dtype
    assert session.stores()["a"] == (held, 12)


def test_bfloat16_is_uint16(session: _core.Session) -> None:
    session.store("b", "bfloat16", 3)
    session.write("b", np.array([0x3F80, 0xC000, 0x7F80], np.uint16))
    assert session.read("b", "float32").tolist() == [1.0, -2.0, math.inf]
    bits = session.read("b", "bfloat16")
    assert bits.dtype == np.uint16
    assert bits.tolist() == [0x3F80, 0xC000, 0x7F80]


def test_large_arrays(session: _core.Session) -> None:
    n = 300_001
    session.store("big", "float32", n)
    values = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    session.write("big", values.astype(np.float64))
    assert (session.read("big", "float32") == values).all()
    session.store("copy", "float32", n)
    session.copy("copy", "big")
    assert (session.read("copy", "float32") == values).all()


def test_refuses(session: _core.Session) -> None:
    session.store("a", "float32", 4)
    session.store("a", "float32", 4)
    array = np.zeros(4, np.float32)
    wrong: list[tuple[type[Exception], Any]] = [
        (errors.ShapeError, lambda: session.store("a", "float32", 5)),
        (errors.ConfigError, lambda: session.store("a", "float32", -1)),
        (errors.HotloopError, lambda: session.store("huge", "float64", 2**62)),
        (errors.ConfigError, lambda: session.store("control", "uint8", 4)),
        (errors.ConfigError, lambda: session.write("control", np.zeros(4, np.uint8))),
        (errors.ConfigError, lambda: session.write("none", array)),
        (errors.ShapeError, lambda: session.write("a", np.zeros(5))),
        (errors.ShapeError, lambda: session.write("a", array, 1)),
        (errors.ShapeError, lambda: session.write("a", array, 2**62)),
        (errors.ConfigError, lambda: session.write("a", array, -1)),
        (errors.DataError, lambda: session.write("a", np.zeros(4, np.uint32))),
        (TypeError, lambda: session.write("a", [0.0])),
        (errors.ConfigError, lambda: session.read("none", "float32")),
        (errors.ShapeError, lambda: session.read("a", "float32", 5)),
        (errors.ShapeError, lambda: session.read("a", "float32", 2, 3)),
        (errors.ShapeError, lambda: session.read("a", "float32", 0, 2**62)),
        (errors.ConfigError, lambda: session.read("a", "float32", 0, -2)),
        (errors.ConfigError, lambda: session.read("a", "complex64")),
        (errors.ConfigError, lambda: session.copy("a", "none")),
        (errors.ConfigError, lambda: session.copy("control", "a")),
        (TypeError, lambda: session.copy("a")),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    assert session.read("a", "float32").tolist() == [0.0] * 4


def test_control(session: _core.Session) -> None:
    control = session.control()
    assert (control["attempted"], control["window_ok"], control["loss_scale"]) == (0, 1, 1.0)
    assert control["nan_mode"] == "stop"
    assert control["factor"] == [1.0] * 32
    session.control_set(attempted=np.int64(7), nan_mode="skip", factor=[0.5, 0.25], loss_scale=8)
    control = session.control()
    assert (control["attempted"], control["nan_mode"], control["loss_scale"]) == (7, "skip", 8.0)
    assert control["factor"][:3] == [0.5, 0.25, 1.0]
    assert session.control_log(0) == []
    assert session.control_log(2**62) == []
    for fields in (
        {"attempted": -1},
        {"applied": 2**63},
        {"stopped": 2},
        {"window_ok": 1},
        {"n_ring": 5},
        {"error_code": 5},
        {"nan_mode": "raise"},
        {"factor": [1.0] * 33},
        {"factor": [math.nan]},
        {"attempted": 3, "unknown": 1},
    ):
        with pytest.raises(errors.ConfigError):
            session.control_set(**fields)
    with pytest.raises(TypeError):
        session.control_set(1)
    with pytest.raises(TypeError):
        session.control_set(loss="1")
    assert session.control()["attempted"] == 7
