"""Every call of the system in a save fails once: training goes on, and nothing is lost.

interpose.c, preloaded, does it to a run of test_checkpoints.py. Errors of the disk are said and the
next save tries again; a call that was interrupted or wrote a part goes on; after a kill before or
behind any of them the run goes on with the bits of one that nothing stopped.

The fast tier takes a few calls, the long one more, HOTLOOP_PROOF all.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fault.test_checkpoints import START, check_and_go_on, run, state_of

KINDS = {
    "write": ["ENOSPC", "EIO", "EDQUOT", "EINTR", "short", "kill", "killed-after"],
    "fsync": ["ENOSPC", "EIO", "EDQUOT", "EINTR", "kill", "killed-after"],
    "openat": ["ENOSPC", "EIO", "EDQUOT", "EMFILE", "kill", "killed-after"],
    "renameat": ["ENOSPC", "EIO", "EDQUOT", "kill", "killed-after"],
    "posix_fallocate": ["ENOSPC", "EIO", "EDQUOT", "EINTR"],
}
WITHOUT_A_TRACE = ("EINTR", "short")
pytestmark = pytest.mark.filterwarnings("ignore::hotloop.CheckpointWarning")


def preload(folder: Path) -> str:
    """interpose.c, compiled into a folder, as LD_PRELOAD wants it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    out = folder / "interpose.so"
    source = Path(__file__).with_name("interpose.c")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(out), "-ldl"], check=True)
    # A sanitizer's library has to stand first.
    return ":".join(filter(None, [os.environ.get("LD_PRELOAD", ""), str(out)]))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return preload(tmp_path_factory.mktemp("interpose"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return state_of(run(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def counts(library: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many calls of each kind a run has behind its first checkpoint."""
    folder = tmp_path_factory.mktemp("counts")
    status, _, calls = train(library, folder / "runs")
    assert status == 0
    return {kind: calls.count(kind) for kind in KINDS}


def train(library: str, folder: Path, **env: str) -> tuple[int, str, list[str]]:
    """Exit status, what was said, and the calls that counted."""
    noted = folder.with_suffix(".calls")
    env |= {"FAULT_FOLDER": str(folder), "FAULT_COUNTS": str(noted)}
    done = subprocess.run(
        [sys.executable, "-c", START, str(folder)],
        env={**os.environ, "LD_PRELOAD": library, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr, noted.read_text().split()


def check(
    library: str, folder: Path, kind: str, k: int, what: str, whole: dict[str, bytes]
) -> None:
    fault = what if what in ("short", "kill", "killed-after") else str(getattr(errno, what))
    status, said, calls = train(library, folder, FAULT=f"{kind}:{k}:{fault}")
    if "failed" not in calls:  # a save was left out, as the one before took long
        assert status == 0
    elif "kill" in what:
        assert status == -9, (kind, k, what)
    else:
        assert status == 0, said
        assert ("warning" in said) == (what not in WITHOUT_A_TRACE), (kind, k, what, said)
    check_and_go_on(folder, 0, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_of_a_save_fails(
    kind: str, library: str, counts: dict[str, int], whole: dict[str, bytes], tmp_path: Path
) -> None:
    assert counts[kind] >= 10
    rng = random.Random(kind)
    for what in rng.sample(KINDS[kind], 2):
        k = rng.randint(1, counts[kind] // 2)
        check(library, tmp_path / f"{what}-{k}", kind, k, what, whole)


@pytest.mark.parametrize("k", [1, 2, 3])  # of a file, of its directory
def test_a_sync_that_is_interrupted(
    k: int, library: str, whole: dict[str, bytes], tmp_path: Path
) -> None:
    check(library, tmp_path / "runs", "fsync", k, "EINTR", whole)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many_calls_of_a_save_fail(
    kind: str, library: str, counts: dict[str, int], whole: dict[str, bytes], tmp_path: Path
) -> None:
    rng = random.Random(f"many {kind}")
    for what in KINDS[kind]:
        places = range(1, counts[kind])
        n = 100 if os.environ.get("HOTLOOP_PROOF") else 3
        for k in rng.sample(places, min(n, len(places))):
            check(library, tmp_path / f"{what}-{k}", kind, k, what, whole)
