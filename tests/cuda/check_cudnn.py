"""The real cuDNN plans the zoo's convolutions, and attention, for GPUs that are not there: `make
cuda-check`.

    python tests/cuda/check_cudnn.py [MODEL ...]

The GPUs are those of kernels/cuda/gpus. cuDNN is that of this environment, NVIDIA's wheel; its
driver is stub_cuda.c. Each distinct convolution of the models is planned with its gradients, in
the 16-bit type that the GPU multiplies; those of ResNet's blocks with what may stand behind them,
too. Without models three of them; `all`: all. From sm_80 on attention is planned with its gradient,
in GPT's, BERT's and ViT's shapes and some odd ones. What has no plan is an error.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT, GPUS = ROOT / "build/cuda-tests/release", ROOT / "kernels/cuda/gpus"
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

SOME = ("resnet50", "convnext_tiny", "mobilenet_v3_small")
FUSIONS = (
    "relu(x)",
    "relu(add(x, y))",
    "relu(add(mul(x, columns(y)), columns(z)))",
    "relu(add(add(mul(x, columns(y)), columns(z)), w))",
)
# Of GPUs that multiply bfloat16.
SUMS = "x, mean_rows(x), var_rows(x)"
# Batches and sides of images.
SIZES = {"resnet_cifar": (128, 32), "unet": (8, 256)}

# Attention: B, H, Hk, L, S, E, Ev; each causal and not.
ATTENTION = (
    (64, 6, 6, 256, 256, 64, 64),  # GPT
    (32, 12, 12, 512, 512, 64, 64),  # BERT
    (128, 3, 3, 197, 197, 64, 64),  # ViT
    (12, 4, 4, 64, 64, 32, 32),
    (2, 8, 2, 1024, 1024, 128, 128),
    (2, 4, 2, 33, 70, 40, 64),
)

LEAF = re.compile(r"%(\d+) [^%(=]*\(([\d, ]*)\)")
NODE = re.compile(r"%(\d+) = (conv|conv_transpose)\(%(\d+)[^,]*, %(\d+)[^,)]*(, %\d+)?")
LIST = re.compile(r"(\w+)=\[([\d, ]*)\]")


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n.strip()]


def trace(name: str) -> str:
    """The forward graph of a model, as text."""
    from hotloop import _core, models
    from hotloop.graph.trace import Trace
    from hotloop.nn.layout import Layout

    n, side = SIZES.get(name, (32, 224))
    model, graph = getattr(models, name)(), _core.Graph()
    with Trace(graph, Layout(model).leaf_for) as trace:
        model(trace.input("x", "float32", (n, 3, side, side)))
    return str(graph)


def convolutions(name: str) -> Iterator[tuple[bool, str]]:
    """Each convolution as check_cudnn.c reads it, but for op and dtypes, and whether it has a bias;
    a transposed one is that whose gradient it is."""
    text = trace(name)
    shapes = {int(i): numbers(shape) for i, shape in LEAF.findall(text)}
    for line in text.splitlines():
        made, _, types = line.partition(" -> ")
        ids = re.findall(r"%(\d+)", made.partition(" = ")[0])
        dims = re.findall(r"\w \(([\d, ]*)\)", types)
        shapes |= {int(i): numbers(shape) for i, shape in zip(ids, dims, strict=False)}
        if not (found := NODE.search(line)):
            continue
        out, x, weight = (shapes[int(found[i])] for i in (1, 3, 4))
        if found[2] == "conv_transpose":
            x, out = out, x
        lists = dict(LIST.findall(line))
        groups = re.search(r"groups=(\d+)", line)
        fields = [x[0], x[1], out[1], int(groups[1]) if groups else 1, len(x) - 2]
        fields += x[2:] + weight[2:]
        for key in ("stride", "dilation", "before", "after"):
            fields += numbers(lists[key])
        yield bool(found[5]), " ".join(map(str, fields))


def lines(names: list[str], dtype: str) -> list[str]:
    """What is asked, each line once."""
    asked: dict[str, None] = {}
    for name in names:
        for has_bias, fields in convolutions(name):
            forward = f"conv{'_bias' * has_bias} {dtype} {dtype} {fields}"
            asked[forward] = None
            asked[f"conv_transpose {dtype} {dtype} {fields}"] = None
            asked[f"conv_weight_grad {dtype} f32 {fields}"] = None
            asked[f"conv f32 f32 {fields}"] = None
    block = " 64 256 64 1 2 56 56 1 1 1 1 1 1 0 0 0 0"
    for fusion in FUSIONS + (SUMS,) * (dtype == "bf16"):
        asked[f"conv {dtype} {dtype}{block} {fusion}"] = None
    for shape in ATTENTION if dtype == "bf16" else ():
        for op, causal in itertools.product(("attention", "attention_grad"), (0, 1)):
            asked[f"{op} {dtype} {' '.join(map(str, shape))} {causal}"] = None
    return list(asked)


def find_library(name: str) -> Path | None:
    """A library in NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in Path(folder).glob(name)), None)


def check(description: Path, libraries: dict[str, str], names: list[str]) -> int:
    """How many problems have no plan for this GPU; each is printed."""
    facts = json.loads(description.read_text())
    arch = facts["deviceVer"] // 10
    asked = lines(names, "bf16" if arch >= 80 else "f16")
    made = subprocess.run(
        [OUT / "check_cudnn", description, str(arch), OUT / "stub/libcuda.so.1"],
        input="\n".join(asked) + "\n", env=os.environ | libraries, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    answers = made.stdout.splitlines()
    bad = [line for line in answers if not line.startswith("yes ")]
    print(f"{facts['deviceName']}: {len(answers) - len(bad)} of {len(asked)} problems planned")
    print("".join(f"  {line}\n" for line in bad), end="")
    if made.returncode or len(answers) != len(asked):
        print(made.stderr[-2000:])
        return max(len(asked) - len(answers), 1)
    return len(bad)


def main() -> int:
    from models.small import CONVOLUTIONAL

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(SOME))
    args = parser.parse_args()
    names = list(CONVOLUTIONAL) if args.models == ["all"] else args.models
    cudnn, nvrtc = find_library("cudnn/lib/libcudnn.so.9"), find_library("cu13/lib/libnvrtc.so.*")
    if cudnn is None or nvrtc is None:
        print("skipped: cuDNN or NVRTC is not in this environment (make cuda installs them)")
        return 0
    libraries = {"HOTLOOP_CUDNN_PATH": str(cudnn), "HOTLOOP_NVRTC_PATH": str(nvrtc)}
    return sum(check(path, libraries, names) for path in sorted(GPUS.glob("*.json"))) > 0


if __name__ == "__main__":
    sys.exit(main())
