"""Registers, stack, spills and shared memory of the CUDA kernels do not grow unseen."""

import importlib.util
from pathlib import Path

import pytest

# By its path: a package of NVIDIA's is called cuda, too.
spec = importlib.util.spec_from_file_location("resources", Path(__file__).with_name("resources.py"))
resources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)
ARCHS, TABLE, Usage = resources.ARCHS, resources.TABLE, resources.Usage

WORDS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'hl_cuda_one' for 'sm_75'
ptxas info    : Function properties for hl_cuda_one
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 384 bytes smem
ptxas info    : Compiling entry function 'hl_cuda_one' for 'sm_90'
ptxas info    : Function properties for hl_cuda_one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 33 registers, used 0 barriers, 416 bytes cmem[0]
"""


def test_what_ptxas_says() -> None:
    found = {"hl_cuda_one": {75: Usage(40, 8, 16, 384), 90: Usage(33, 0, 0, 0)}}
    assert resources.parse(WORDS) == found
    text = resources.write_table("13.0.88", found)
    assert resources.read_table(text) == ("13.0.88", found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"registers": 40}, None),
        ({"registers": 30}, None),
        ({"registers": 41}, "registers must be at most 40, got 41"),
        ({"stack": 8}, "stack must be at most 0, got 8"),
        ({"spills": 4}, "spills must be at most 0, got 4"),
        ({"shared": 129}, "shared must be at most 128, got 129"),
    ],
)
def test_what_has_grown(change: dict[str, int], words: str | None) -> None:
    usage = Usage(33, 0, 0, 128)
    table = {"hl_cuda_one": {75: usage, 90: usage}}
    built = {"hl_cuda_one": {75: usage, 90: usage._replace(**change)}}
    wanted = [f"hl_cuda_one, sm_90: {words}"] if words else []
    assert resources.compare(table, built) == wanted


def test_kernels_that_come_and_go() -> None:
    usage = {90: Usage(33, 0, 0, 128)}
    table = {"hl_cuda_one": {75: usage[90], **usage}, "hl_cuda_two": {75: usage[90], **usage}}
    assert resources.compare(table, {"hl_cuda_one": usage, "hl_cuda_three": usage}) == [
        "hl_cuda_three: is not in the table",
        "hl_cuda_two: is in the table and not in the build",
    ]


def test_stacks_and_spills_have_a_reason() -> None:
    _, table = resources.read_table(TABLE.read_text())
    assert table.keys() >= {"hl_cuda_adam", "hl_cuda_softmax_f32_x1"}
    assert not resources.find_unjustified(table)
    usage = Usage(33, 8, 4, 0)
    assert resources.find_unjustified({"hl_cuda_one": {75: usage}})
    assert resources.find_unjustified({"hl_cuda_one": {90: usage._replace(spills=200)}})


def test_this_build() -> None:
    known, table = resources.read_table(TABLE.read_text())
    try:
        version, built = resources.read_build()
    except resources.NothingToCompareError as error:
        pytest.skip(str(error))
    if version != known:
        pytest.skip(f"nvcc must be {known}, whose kernels the table has, got {version}")
    if not any(built[kernel].keys() & ARCHS for kernel in built):
        pytest.skip('neither sm_75 nor sm_90 is built (HL_CUDA_ARCHS="75;90" make build)')
    found = resources.compare(table, built)
    assert not found, "\n".join([*found, "make cuda-resources ARGS=--write takes it as it is"])
