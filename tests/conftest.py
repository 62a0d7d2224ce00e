"""What all tests share: data, seeds, tiers, names that are the same in every process.

Tiers: plain `pytest` is the fast tier; --long (or a -m expression that names `long`) adds the long
one. Files of tests/parity carry the mark `parity`. Tests of a GPU, real or emulated, run where
HOTLOOP_TEST_GPU is set. What a machine may lack, and how a test says so, is in needs.py.
"""

import contextlib
import gc
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lint import rules

TESTS = Path(__file__).resolve().parent
FAKE = TESTS.parent / "build/cuda-tests/release/libcuda_fake.so"

# A test that says nothing of a device is of the CPU, in a machine with a GPU too.
if not os.environ.get("HOTLOOP_TEST_GPU"):
    os.environ.setdefault("HOTLOOP_CUDA_PATH", os.devnull)

# A shell that starts the tests in the background lets their processes ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast the machine is says nothing of what is tested.
with contextlib.suppress(ImportError):
    import hypothesis

    hypothesis.settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --long."""
    parser.addoption("--long", action="store_true", help="run the tests marked long as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks the ids, marks by folder, deselects the long tier unless it is asked for."""
    if faults := rules.check_test_ids("\n".join(item.nodeid for item in items)):
        raise pytest.UsageError("\n".join(faults))
    for item in items:
        if item.path.relative_to(TESTS).parts[0] == "parity":
            item.add_marker("parity")

    if not config.getoption("--long") and "long" not in config.getoption("-m"):
        long_items = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long_items)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_collection_finish() -> None:
    """What is there now lives to the end: tests that collect garbage need not look through it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data, $HOTLOOP_DATA; skips visibly where there is none."""
    value = os.environ.get("HOTLOOP_DATA")
    if not value:
        pytest.skip("HOTLOOP_DATA is not set (CONTRIBUTING.md says what it names)")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"HOTLOOP_DATA={value} is not a folder")
    return folder


@pytest.fixture
def gpu() -> Iterator[Any]:
    """The GPU that trainings use; it holds nothing of theirs in the end."""
    import hotloop as hl  # tests of the build run without it
    from hotloop.training.plans.accelerator import choose_device

    device, _ = choose_device("gpu", "32-true")
    yield device
    hl.empty_cache()
    memory = device.memory()
    assert memory is not None
    assert memory["current_bytes"] == 0


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number that is the test's own (by its id) and the same in every run and process."""
    return int.from_bytes(hashlib.sha256(request.node.nodeid.encode()).digest()[:4], "little")


@pytest.fixture(scope="session", autouse=True)
def first_global_seed() -> Any:
    """Before any test, and any fixture of a file, has said something to hl.manual_seed."""
    from hotloop.graph.seeds import _State

    return _State.seed, _State.n_streams


@pytest.fixture(autouse=True)
def own_global_seed(first_global_seed: Any) -> None:
    """What a test or a fixture says to hl.manual_seed is nothing to those behind it."""
    from hotloop.graph.seeds import _State

    _State.seed, _State.n_streams = first_global_seed


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """NumPy's generator with the test's seed."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def fake() -> Path:
    """The emulated driver as a shared library; those of cuBLASLt and NVRTC stand beside it."""
    if not FAKE.exists():
        pytest.skip("the emulated driver was not built (make build builds it)")
    return FAKE
