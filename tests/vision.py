"""torchvision's transforms, also beside a PyTorch that its compiled part does not fit."""

import functools
from types import ModuleType

import pytest
from needs import take_library

_OPERATORS = (
    *("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"),
    *("_roi_align_backward", "_roi_pool_backward", "_ps_roi_align_backward"),
    *("_ps_roi_pool_backward", "_deform_conv2d_backward"),
)
_kept = []


@functools.cache
def _import_transforms() -> ModuleType | str:
    """transforms.v2, or why not."""
    import torch

    try:
        import torchvision.transforms.v2 as transforms
    except RuntimeError:
        # The wheels of another CUDA: operators of detection are not there, which importing asks
        # for. Transforms are Python.
        library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor x) -> Tensor")
        _kept.append(library)
        try:
            import torchvision.transforms.v2 as transforms
        except (ImportError, RuntimeError) as error:
            return f"torchvision cannot be imported: {error}"
    return transforms


def take_transforms() -> ModuleType:
    """torchvision.transforms.v2; skips where there is none."""
    __tracebackhide__ = True
    take_library("torch")
    try:
        found = _import_transforms()
    except ImportError:
        pytest.skip("torchvision is not installed (make test-long installs it)")
    if isinstance(found, str):
        pytest.skip(found)
    return found
