"""Every call of the driver, cuBLASLt, cuDNN and NVRTC that a public entry makes fails, in a process
of its own over the emulated driver and libraries: ``device_calls.py MOST [ENTRY ...]``.

An entry runs from a closed device to its result. For the k-th call of a library, k by k:

once      that call alone fails: the entry raises DeviceError or OutOfMemoryError, or has its result
          all the same;
for good  that call and all after it fail until the library is mended;
lost      (the driver alone) an illegal access is what that call finds, and all after it: the entry
          raises DeviceLostError, as every later call does at once, without asking the driver, and
          the CPU still works.

After the first two the next call has its result, nothing is alive once the device is closed, and
nothing was done that the emulation calls wrong. A lost device stays lost, so each of those runs is
a fork of a process that has opened none. At most MOST k of each kind are taken, all if it is 0. The
last line is a JSON object: per entry the calls of each library, and how runs ended.
"""

import collections
import ctypes
import faulthandler
import gc
import json
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
from hotloop import _core, nn
from train.recipes import classes, quiet, weights

Call = Callable[[], Any]

X, Y = classes(n=40)
ILLEGAL_ADDRESS, NOT_SUPPORTED, OUT_OF_MEMORY = 700, 801, 2
EXECUTION_FAILED, EXECUTION_FAILED_DNN, COMPILATION = 13, 5000, 6


# ---------------------------------------------------------------------------- entries


def make_model() -> nn.Module:
    hl.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))


def make_data() -> hl.DataModule:
    return hl.DataModule.from_arrays(X, Y, val=0.2, batch_size=16)


def make_net() -> nn.Module:
    """One of images."""
    hl.manual_seed(3)
    convolutions = (nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 4, 1))
    return nn.Sequential(nn.Unflatten(1, (1, 6)), *convolutions, nn.Flatten(), nn.Linear(24, 3))


def config(**fields: Any) -> hl.TrainingConfig:
    exact = {"precision": "32-true", "deterministic": True, "optimizer": "sgd", "lr": 0.05}
    return quiet(**({"max_epochs": 1, "accelerator": "gpu", "on_oom": "raise"} | exact | fields))


def train(**fields: Any) -> Call:
    model, data = make_model(), make_data()
    return lambda: (hl.train(model, data, config(**fields)).history["val_loss"], weights(model))


def train_fed() -> Call:
    return train(device_cache=False, cuda_graph=False)


def train_net() -> Call:
    model, data = make_net(), make_data()
    return lambda: (hl.train(model, data, config()).history["val_loss"], weights(model))


def step() -> Call:
    model, data = make_model(), make_data()

    def call() -> Any:
        stepper = hl.stepper(model, config(), data)
        made = [stepper.step((X[:16], Y[:16])) for _ in range(2)]
        return made, stepper.evaluate("val"), weights(stepper.sync())

    return call


def evaluate() -> Call:
    model, data = make_model(), make_data()
    return lambda: hl.evaluate(model, data, "val", config=config())


def predict() -> Call:
    model = make_model()
    return lambda: hl.predict(model.cuda(), X, 16)  # in 16 bits, as it is done on such a GPU


def save() -> Call:
    model, data = make_model(), make_data()

    def call() -> Any:
        result = hl.train(model, data, config())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            result.save(path)
            return hl.predict(hl.load(path), X)

    return call


def load() -> Call:
    model, data = make_model(), make_data()
    cpu = hl.train(model, data, config(accelerator="cpu"))

    def call() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            cpu.save(path)
            return hl.evaluate(hl.load(path).cuda(), data, "val", config=config())

    return call


def plan() -> Call:
    model, data = make_model(), make_data()
    return lambda: hl.plan(model, data, config()).text


def devices() -> Call:
    return lambda: [line for line in hl.devices().rows() if line[0] != "cpu:0"]


ENTRIES: dict[str, Callable[[], Call]] = {
    made.__name__: made
    for made in (train, train_fed, train_net, step, evaluate, predict, save, load, plan, devices)
}


# ---------------------------------------------------------------------------- the libraries


class Library:
    """One of the four: its calls are counted, and made to fail."""

    def __init__(self, name: str, variable: str, function: str, error: int) -> None:
        self.name, self.error = name, error
        self.symbols = ctypes.CDLL(os.environ[variable])
        self._fail = self.symbols[function]
        self._fail.argtypes = [ctypes.c_int64, ctypes.c_bool, ctypes.c_int]
        self._fail.restype = ctypes.c_int64

    def fail(self, k: int, sticky: bool = False, error: int | None = None) -> int:
        """The k-th call from now fails, 0: none. How many there were since this was called."""
        return int(self._fail(k, sticky, self.error if error is None else error))


DRIVER = Library("driver", "HOTLOOP_CUDA_PATH", "hl_fake_fail", NOT_SUPPORTED)
LIBRARIES = (
    DRIVER,
    Library("cuBLASLt", "HOTLOOP_CUBLASLT_PATH", "hl_fake_lt_fail", EXECUTION_FAILED),
    Library("cuDNN", "HOTLOOP_CUDNN_PATH", "hl_fake_dnn_fail", EXECUTION_FAILED_DNN),
    Library("NVRTC", "HOTLOOP_NVRTC_PATH", "hl_fake_nvrtc_fail", COMPILATION),
)


def held() -> dict[str, int]:
    """What is alive with the device closed: objects of the libraries, and blocks of the host's."""
    hl.empty_cache()
    gc.collect()
    stats = _core.alloc_stats()
    return {
        "driver": DRIVER.symbols.hl_fake_live_sum(),
        "cuBLASLt": LIBRARIES[1].symbols.hl_fake_lt_live(),
        "cuDNN": LIBRARIES[2].symbols.hl_fake_dnn_live(),
        "NVRTC": LIBRARIES[3].symbols.hl_fake_nvrtc_live(),
        "blocks": stats["n_live"],
        "bytes": stats["current_bytes"],
    }


def complaint() -> str:
    """What the emulation has called wrong."""
    DRIVER.symbols.hl_fake_message.restype = ctypes.c_char_p
    return str(DRIVER.symbols.hl_fake_message().decode())


def asked() -> int:
    """Calls of the driver so far, but for an error's words."""
    calls = DRIVER.symbols.hl_fake_calls
    calls.restype = ctypes.c_int64
    return int(calls(None) - calls(b"cuGetErrorName") - calls(b"cuGetErrorString"))


# ---------------------------------------------------------------------------- the walks


def chosen(n: int, most: int, offset: int) -> list[int]:
    """At most so many of 1 ... n, other ones by the offset; 0: all."""
    if most == 0 or n <= most:
        return list(range(1, n + 1))
    return sorted({int(k) for k in np.linspace(1 + offset, n, most)})


def bits(value: Any) -> bytes:
    return pickle.dumps(value)


def alike(made: Any, want: Any) -> bool:
    """But for what another kernel's order of sums makes of it; words may be others."""
    if isinstance(want, dict):
        return made.keys() == want.keys() and all(alike(made[k], want[k]) for k in want)
    if isinstance(want, list | tuple):
        return len(made) == len(want) and all(map(alike, made, want))
    return isinstance(want, str) or np.allclose(made, want, rtol=1e-4, atol=1e-5)


class Walk:
    """All runs of an entry."""

    def __init__(self, entry: Callable[[], Call], most: int) -> None:
        self.entry, self.most = entry, most
        self.counts: collections.Counter[str] = collections.Counter()

    def mended(self, library: Library, sticky: bool) -> None:
        """Failures that leave the device as it was."""
        values = self.entry()()
        want = bits(values)
        hl.empty_cache()
        library.fail(0)
        assert bits(self.entry()()) == want
        hl.empty_cache()
        n = library.fail(0)
        self.counts[library.name] = n
        before = held()
        for k in chosen(n, self.most, int(sticky)):
            where = f"{library.name}: call {k} of {n}, {'for good' if sticky else 'once'}"
            error = OUT_OF_MEMORY if library is DRIVER and k % 3 == 0 else None
            call = self.entry()
            library.fail(k, sticky, error)
            try:
                made = call()
            except hl.DeviceLostError as lost:
                raise AssertionError(f"{where}: {lost}") from lost
            except (hl.DeviceError, hl.OutOfMemoryError):
                self.counts[f"{library.name} raised"] += 1
            except BaseException as other:
                raise AssertionError(f"{where}: {type(other).__name__}: {other}") from other
            else:
                self.counts[f"{library.name} went on"] += 1
                assert alike(made, values), f"{where}: another result"
                call = self.entry()
            library.fail(0)
            assert alike(call(), values), f"{where}: the next call differs"
            del call
            assert held() == before, f"{where}: {held()} is alive, {before} before"
            assert complaint() == "", f"{where}: {complaint()}"
        assert bits(self.entry()()) == want
        hl.empty_cache()

    def lost(self) -> None:
        """An illegal access at each call, each in a process that has no device yet."""
        in_fork(self.count)  # what it compiles and measures stays on disk
        n, want = in_fork(self.count)
        for k in chosen(n, self.most, 0):
            self.counts[f"device {in_fork(self.lose, k, want)}"] += 1

    def count(self) -> tuple[int, Any]:
        DRIVER.fail(0)
        made = self.entry()()
        hl.empty_cache()
        return DRIVER.fail(0), made

    def lose(self, k: int, want: Any) -> str:
        call = self.entry()
        DRIVER.fail(k, True, ILLEGAL_ADDRESS)
        made: list[Any] = []
        ended = outcome(call, made)
        for value in made:  # before the call, or the call gives back
            assert self.entry is devices or alike(value, want), f"call {k}: another result"
        if DRIVER.fail(1, True, ILLEGAL_ADDRESS) < k:
            return "kept"  # by one call less than at the count
        for later in (call, ENTRIES["train"](), ENTRIES["predict"]()):
            before = asked()
            found = outcome(later)
            if ended == "lost":
                assert found == "lost", f"call {k}: {found} after it"
                assert asked() == before, f"call {k}: the driver was asked again"
            else:
                wrong = ["lost"] if ended == "not opened" else []
                wrong += ["done"] if later is not call else []
                assert found not in wrong, f"call {k}: {ended}, then {found}"
        assert hl.train(make_model(), make_data(), config(accelerator="cpu")).steps == 2
        del call, later
        held()
        return ended


def outcome(call: Call, made: list[Any] | None = None) -> str:
    """How a call ends on a device that finds an illegal access; what it made goes to the list."""
    try:
        value = call()
    except hl.DeviceLostError:
        return "lost"
    except hl.DeviceError:
        return "not opened"
    if made is not None:
        made.append(value)
    return "done"


def in_fork(call: Callable[..., Any], *args: Any) -> Any:
    """What the call returns, in a child of this process."""
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(go, "wb") as pipe:
                pickle.dump(call(*args), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    os.close(go)
    with os.fdopen(come, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"{call.__name__}, {args[:1]}: status {status}"
    return pickle.loads(said)


def main() -> None:
    """Losses first: the process must have opened no device then."""
    faulthandler.enable()
    most = int(sys.argv[1])
    walks = {name: Walk(ENTRIES[name], most) for name in sys.argv[2:] or ENTRIES}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOTLOOP_CACHE_PATH"] = folder
        for name, walk in walks.items():
            print(name, file=sys.stderr)
            walk.lost()
    os.environ["HOTLOOP_CACHE_PATH"] = ""
    for name, walk in walks.items():
        print(name, file=sys.stderr)
        for library in LIBRARIES:
            for sticky in (False, True):
                walk.mended(library, sticky)
    print(json.dumps({name: walk.counts for name, walk in walks.items()}))


if __name__ == "__main__":
    main()
