"""PyTorch's side of ``make bench-kernels``: the same convolution, or one of its gradients, alone.

python -m benchmarks.worker_kernels_torch nhwc|nchw [--threads N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.layers import BATCH, parse_case
from benchmarks.worker import serve_cases

_FORMATS = {"nhwc": torch.channels_last, "nchw": torch.contiguous_format}


def make_step(case: str, memory_format: torch.memory_format) -> Callable[[], int]:
    """A function that computes the case once and returns 1."""
    layer, which, precision = parse_case(case)
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]

    def draw(*shape: int) -> Any:
        return torch.randn(*shape).to(dtype).contiguous(memory_format=memory_format)

    x = draw(BATCH, layer.channels, layer.size, layer.size)
    dy = draw(BATCH, layer.out, layer.result, layer.result)
    w = draw(layer.out, layer.channels // layer.groups, layer.kernel, layer.kernel)
    how = (
        [layer.stride] * 2, [layer.padding] * 2, [1, 1], False, [0, 0], layer.groups,
    )  # fmt: skip

    def step() -> int:
        if which == "forward":
            torch.ops.aten.convolution(x, w, None, *how)
        else:
            wanted = [which == "dx", which == "dw", False]
            torch.ops.aten.convolution_backward(dy, x, w, None, *how, wanted)
        return 1

    step()
    return step


def main() -> None:
    """Serves slices of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("format", choices=_FORMATS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    memory_format = _FORMATS[options.format]
    serve_cases(lambda case: make_step(case, memory_format), version=torch.__version__)


if __name__ == "__main__":
    main()
