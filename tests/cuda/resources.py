"""What each CUDA kernel takes of a multiprocessor, and a table of it that does not grow unseen.

    python tests/cuda/resources.py           compares the build's kernels with resources.txt
    python tests/cuda/resources.py --write   writes resources.txt anew

The build keeps what ptxas said of each kernel (setup.py): registers and bytes of stack, spills and
shared memory. They decide how many warps are there at once, and a change of a line may double them
without any test of values noticing. They are the compiler's, so the table holds for one release of
nvcc; with another one there is nothing to compare.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("resources.txt")
ARCHS = (75, 90)
# Registers are given to a warp by so many a thread.
UNIT = 8
# Of the registers of a program that is interpreted, an array: local memory by its nature.
INTERPRETERS = ("hl_cuda_pointwise_", "hl_cuda_sequence")
# What ptxas may keep in memory for sm_90 by a choice of its own (the table's head).
CHOSEN_SPILLS = 96
# By architecture: the kernels that ptxas spills a little of, by its own choice (see the head).
CHOSEN = {
    75: ("hl_cuda_batch_norm_sums_bf16", "hl_cuda_attention_", "hl_cuda_recurrence_"),
    90: ("hl_cuda_",),
}

HEAD = """\
# Registers a thread, and bytes of stack, spills (stores and loads) and shared memory, of every CUDA
# kernel: tests/cuda/resources.py, which compares it with a build and writes it (--write).
#
# A stack, or a spill, is there for one of two reasons. hl_cuda_pointwise_* and hl_cuda_sequence
# interpret a program whose registers are an array: which one is read is known at run time alone, so
# the array is in local memory. The latter's 1024 threads leave it 64 registers each. And ptxas
# itself keeps a few words of a kernel in memory where that takes it to a lower multiple of eight
# registers, so that more warps fit: in many kernels for sm_90, and for sm_75 in the sums of batch
# norm's gradient over bfloat16, in recurrences and in attention's gradients (those in bfloat16 end
# in a trap there). Told that one block a multiprocessor is enough (__launch_bounds__(threads, 1))
# it spills nothing, and many kernels, these and others, take eight to twenty-four registers more.
"""


class Usage(NamedTuple):
    """Of a kernel on one architecture: registers a thread, the others in bytes."""

    registers: int
    stack: int
    spills: int
    shared: int


Resources = dict[str, dict[int, Usage]]  # kernel: architecture: usage


class NothingToCompareError(Exception):
    """Why this machine has no numbers that the table speaks of, and what would give them."""


def load_setup() -> ModuleType:
    """setup.py, which knows where the build keeps what ptxas said."""
    spec = importlib.util.spec_from_file_location("hotloop_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(words: str) -> Resources:
    """What ptxas said of the kernels of a source."""
    found: Resources = {}
    kernel, arch, stack, spills = "", 0, 0, 0
    for line in words.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)' for 'sm_(\d+)", line):
            kernel, arch = entry[1], int(entry[2])
        elif frame := re.match(r" +(\d+) bytes stack frame, (\d+) bytes spill .*, (\d+) by", line):
            stack, spills = int(frame[1]), int(frame[2]) + int(frame[3])
        elif used := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            usage = Usage(int(used[1]), stack, spills, int(shared[1]) if shared else 0)
            found.setdefault(kernel, {})[arch] = usage
    return found


def read_build() -> tuple[str, Resources]:
    """nvcc's version and the kernels of this environment's build.

    Raises
    ------
    NothingToCompareError
        There is no nvcc, or no build by it for the environment's architectures.
    """
    try:
        setup = load_setup()
    except ModuleNotFoundError as error:
        raise NothingToCompareError(f"{error} (make build installs it)") from error
    if os.environ.get("HL_CUDA") == "0":
        raise NothingToCompareError("HL_CUDA=0: CPU-only (HL_CUDA=1 make build has kernels)")
    nvcc, why = setup.find_nvcc()
    if nvcc is None:
        raise NothingToCompareError(f"{why}: the CUDA toolkit has it")
    try:
        cuda = setup.CudaToolchain(nvcc, dict(os.environ))
    except setup.CompileError as error:
        raise NothingToCompareError(str(error)) from error
    version = re.search(r"V(\d+\.\d+\.\d+)", cuda.version)
    found: Resources = {}
    for source in setup.find("kernels/cuda", "**/*.cu"):
        kept = ROOT / cuda.resources_of(source)
        if not setup.is_current(cuda.fatbin_of(source)) or not kept.exists():
            raise NothingToCompareError(f"{source} is not compiled as it is now: make build does")
        found |= parse(kept.read_text())
    return version[1] if version else cuda.version.strip(), found


def write_table(version: str, resources: Resources) -> str:
    """The table as text."""
    lines = [HEAD, f"nvcc {version}\n", f"{'kernel':40}"]
    lines += [f"   sm_{arch}: regs stack spills shared" for arch in ARCHS]
    for kernel in sorted(resources):
        lines.append(f"\n{kernel:40}")
        lines += ["{:15}{:6}{:7}{:7}".format(*resources[kernel][arch]) for arch in ARCHS]
    return "".join([*lines, "\n"])


def read_table(text: str) -> tuple[str, Resources]:
    """nvcc's version and the kernels of a table's text."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: Resources = {}
    for line in lines[2:]:
        kernel, *words = line.split()
        numbers = [int(word) for word in words]
        found[kernel] = {
            arch: Usage(*numbers[at : at + 4]) for arch, at in zip(ARCHS, range(0, 8, 4))
        }
    return lines[0].split()[1], found


def compare(table: Resources, built: Resources) -> list[str]:
    """Where the build takes more than the table has, and kernels that only one of them has.

    Registers may grow to the next multiple of eight, which takes nothing; nothing else may.
    """
    found = [f"{kernel}: is in the table and not in the build" for kernel in table.keys() - built]
    for kernel, usages in built.items():
        if kernel not in table:
            found.append(f"{kernel}: is not in the table")
            continue
        for arch in usages.keys() & ARCHS:
            old, new = table[kernel][arch], usages[arch]
            most = old._replace(registers=-(-old.registers // UNIT) * UNIT)
            found += [
                f"{kernel}, sm_{arch}: {name} must be at most {limit}, got {got}"
                for name, limit, got in zip(Usage._fields, most, new)
                if got > limit
            ]
    return sorted(found)


def find_unjustified(resources: Resources) -> list[str]:
    """Stacks and spills for which the table's head has no reason."""
    return sorted(
        f"{kernel}, sm_{arch}: {usage}"
        for kernel, usages in resources.items()
        for arch, usage in usages.items()
        if (usage.stack or usage.spills)
        and not kernel.startswith(INTERPRETERS)
        and not (kernel.startswith(CHOSEN[arch]) and usage.spills <= CHOSEN_SPILLS)
    )


def main() -> int:
    """Compares, or writes; 1 where the build takes more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table anew")
    is_written = parser.parse_args().write
    try:
        version, built = read_build()
    except NothingToCompareError as error:
        print(f"resources: {error}", file=sys.stderr)
        return 1
    if missing := [arch for arch in ARCHS if any(arch not in one for one in built.values())]:
        print(f'resources: needs HL_CUDA_ARCHS="75;90", got none for {missing}', file=sys.stderr)
        return 1
    if is_written:
        TABLE.write_text(write_table(version, built))
        print(f"{len(built)} kernels by nvcc {version}, written to {TABLE.relative_to(ROOT)}")
        return 0
    known, table = read_table(TABLE.read_text())
    if known != version:
        print(f"resources: the table is of nvcc {known}, this one is {version}", file=sys.stderr)
        return 1
    found = compare(table, built)
    print(*found, f"{len(built)} kernels, {len(found)} take more or are unknown", sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
