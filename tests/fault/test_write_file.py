"""What the system refuses while a file is written: CheckpointError, the old file and nothing else.

tests/c/test_base_file.c fails every system call of the writer; here real limits do it, by way of
``hl.save`` in a process of its own.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn

# argv: path, limit. Saves a small model, then under the limit a large one; prints what came of it.
SCRIPT = """
import os, resource, signal, sys
import hotloop as hl
from hotloop import nn

path, limit = sys.argv[1:]
hl.save(nn.Linear(3, 2), path)
before = open(path, "rb").read()
large = nn.Linear(300, 2000)
large.state_dict()
if limit == "file size":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
elif limit == "open files":
    n = len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))
try:
    hl.save(large, path)
    print("saved")
except hl.CheckpointError as error:
    print(f"{type(error).__name__}: {error}")
print(open(path, "rb").read() == before if limit != "open files" else "not read")
"""


def run(path: Path, limit: str, prefix: list[str] | None = None) -> list[str]:
    command = [*(prefix or []), sys.executable, "-c", SCRIPT, str(path), limit]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout.splitlines()


def test_without_a_limit(tmp_path: Path) -> None:
    assert run(tmp_path / "net", "none") == ["saved", "False"]


def test_a_file_grows_too_large(tmp_path: Path) -> None:
    said, same = run(tmp_path / "net", "file size")
    assert said.startswith("CheckpointError: ")
    assert "net" in said
    assert same == "True"
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_no_file_may_be_opened(tmp_path: Path) -> None:
    said, _ = run(tmp_path / "net", "open files")
    assert said.startswith("CheckpointError: ")
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_a_full_disk(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=64k none {tmp_path} && exec "$0" "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (util-linux has it)")
    for user in ([], ["--map-root-user"]):  # root mounts, and most systems let others by themselves
        prefix = ["unshare", *user, "--mount", "sh", "-c", mount]
        probe = subprocess.run([*prefix, "true"], capture_output=True, timeout=20, check=False)
        if probe.returncode == 0:
            break
    else:
        pytest.skip("this user may not mount a file system (root may, outside a container)")
    said, same = run(tmp_path / "net", "none", prefix)
    assert said.startswith("CheckpointError: ")
    assert "space" in said
    assert same == "True"


def test_places_that_take_no_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    model = nn.Linear(2, 2)
    for place in (
        tmp_path / "missing" / "net",
        tmp_path,
        file / "net",
        tmp_path / ("n" * 300),
        Path("/proc/net"),
    ):
        with pytest.raises(hl.CheckpointError):
            hl.save(model, place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_bytes() == b"x"


def test_wrong_arguments(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    for parts in (None, [1], [np.zeros(3)[::2]], b"x", [None]):
        with pytest.raises((TypeError, hl.HotloopError, BufferError, ValueError)):
            _core.write_file(path, parts)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
