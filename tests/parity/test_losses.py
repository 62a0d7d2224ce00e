"""Every loss of torch.nn with its options: value, gradients, all reductions."""

import warnings
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

from hotloop import nn  # noqa: E402
from parity.twins import check_twins  # noqa: E402


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return rng().standard_normal(shape)


def share(*shape: int) -> np.ndarray:
    return rng().uniform(0.05, 0.95, shape)


def sign(*shape: int) -> np.ndarray:
    return np.where(rng().random(shape) < 0.5, 1.0, -1.0)


LABELS = rng().integers(0, 5, 7)
SOME = np.where(np.arange(7) % 3 == 0, -100, LABELS)
W5 = "T([0.3, 1.0, 2.0, 0.7, 1.3])"
LOGS = np.log(share(7, 5) / share(7, 5).sum(1, keepdims=True))
SETS = np.array([[1, 3, -1, 0, 2], [0, 1, 2, 3, 4], [-1, 1, 2, 0, 3], [4, -1, -1, 1, 1]])
PAIR = (normal(7, 5), share(7, 5))
FRAMES = np.log(share(9, 3, 5))
SPOKEN = np.array([[1, 2, 2], [3, 0, 0], [4, 4, 1]])
HEARD = (np.array([9, 7, 9]), np.array([3, 1, 3]))
LOSSES: dict[str, tuple[np.ndarray, ...]] = {
    "MSELoss": PAIR,
    "L1Loss": PAIR,
    "SmoothL1Loss": PAIR,
    "SmoothL1Loss(beta=0.3)": PAIR,
    "HuberLoss": PAIR,
    "HuberLoss(delta=0.3)": PAIR,
    "CrossEntropyLoss": (normal(7, 5), LABELS),
    "CrossEntropyLoss places": (normal(4, 5, 3), rng().integers(0, 5, (4, 3))),
    "CrossEntropyLoss ignored": (normal(7, 5), SOME),
    "CrossEntropyLoss(ignore_index=2)": (normal(7, 5), LABELS),
    f"CrossEntropyLoss(weight={W5})": (normal(7, 5), SOME),
    "CrossEntropyLoss(label_smoothing=0.2)": (normal(7, 5), LABELS),
    f"CrossEntropyLoss(weight={W5}, label_smoothing=0.2)": (normal(7, 5), SOME),
    "CrossEntropyLoss soft": (normal(7, 5), share(7, 5)),
    f"CrossEntropyLoss(weight={W5}, label_smoothing=0.1) soft": (normal(7, 5), share(7, 5)),
    "NLLLoss": (LOGS, LABELS),
    "NLLLoss ignored": (LOGS, SOME),
    f"NLLLoss(weight={W5})": (LOGS, LABELS),
    "NLLLoss(ignore_index=1)": (LOGS, LABELS),
    "BCELoss": (share(7, 5), share(7, 5)[::-1].copy()),
    f"BCELoss(weight={W5})": (share(7, 5), share(7, 5)[::-1].copy()),
    "BCEWithLogitsLoss": (normal(7, 5) * 10, share(7, 5)),
    f"BCEWithLogitsLoss(weight={W5})": (normal(7, 5), share(7, 5)),
    f"BCEWithLogitsLoss(pos_weight={W5})": (normal(7, 5) * 10, share(7, 5)),
    "KLDivLoss": (LOGS, share(7, 5)),
    "KLDivLoss zeros": (LOGS, np.round(share(7, 5))),
    "KLDivLoss(log_target=True)": (LOGS, normal(7, 5)),
    "HingeEmbeddingLoss": (normal(7, 5), sign(7, 5)),
    "HingeEmbeddingLoss(margin=0.4)": (normal(7, 5), sign(7, 5)),
    "MarginRankingLoss": (normal(7), share(7), sign(7)),
    "MarginRankingLoss(margin=0.4)": (normal(7), share(7), sign(7)),
    "CosineEmbeddingLoss": (normal(7, 5), share(7, 5), sign(7)),
    "CosineEmbeddingLoss(margin=0.3)": (normal(7, 5), share(7, 5), sign(7)),
    "SoftMarginLoss": (normal(7, 5), sign(7, 5)),
    "MultiLabelSoftMarginLoss": (normal(7, 5), np.round(share(7, 5))),
    f"MultiLabelSoftMarginLoss(weight={W5})": (normal(7, 5), np.round(share(7, 5))),
    "MultiMarginLoss": (normal(7, 5), LABELS),
    "MultiMarginLoss(p=2, margin=0.5)": (normal(7, 5), LABELS),
    f"MultiMarginLoss(weight={W5})": (normal(7, 5), LABELS),
    "MultiLabelMarginLoss": (normal(4, 5), SETS),
    "TripletMarginLoss": (normal(7, 5), share(7, 5), -share(7, 5)),
    "TripletMarginLoss(margin=2.0, p=3, swap=True)": (normal(7, 5), share(7, 5), -share(7, 5)),
    "TripletMarginWithDistanceLoss": (normal(7, 5), share(7, 5), -share(7, 5)),
    "PoissonNLLLoss": (normal(7, 5), np.round(share(7, 5) * 6)),
    "PoissonNLLLoss(full=True)": (normal(7, 5), np.round(share(7, 5) * 6)),
    "PoissonNLLLoss(log_input=False)": (share(7, 5), np.round(share(7, 5) * 6)),
    "CTCLoss": (FRAMES, SPOKEN, *HEARD),
    "CTCLoss empty": (FRAMES, SPOKEN, HEARD[0], np.array([0, 1, 0])),
    "CTCLoss(blank=4) other": (FRAMES, SPOKEN % 4, *HEARD),
    "CTCLoss concatenated": (FRAMES, np.array([1, 2, 2, 3, 4, 4, 1]), *HEARD),
    "CTCLoss one": (FRAMES[:, 0], SPOKEN[0], np.array(9), np.array(3)),
    "CTCLoss(zero_infinity=True) short": (FRAMES, SPOKEN, np.array([3, 0, 2]), HEARD[1]),
    "GaussianNLLLoss": (normal(7, 5), share(7, 5), share(7, 5)[::-1].copy()),
    "GaussianNLLLoss(full=True) one": (normal(7, 5), share(7, 5), share(7, 1)),
}


def make(expression: str, home: Any, reduction: str) -> Any:
    name, _, rest = expression.partition("(")
    inside = rest.rpartition(")")[0]
    options = eval(f"dict({inside})", {"T": as_array if home is nn else as_tensor})
    return getattr(home, name.split()[0])(**options, reduction=reduction)


def as_array(values: list[float]) -> np.ndarray:
    return np.asarray(values, np.float32)


def as_tensor(values: list[float]) -> Any:
    return torch.tensor(values, dtype=torch.float32).double()


CASES = [(e, r) for e in LOSSES for r in ("mean", "sum", "none")]
CASES += [(e, "batchmean") for e in LOSSES if e.startswith("KLDiv")]


@pytest.mark.parametrize(("expression", "reduction"), CASES)
def test_loss(expression: str, reduction: str) -> None:
    inputs = LOSSES[expression]
    if len(inputs) == 2 and inputs[1].dtype.kind == "i":
        fixed, free = inputs[1:], inputs[:1]
    elif "Embedding" in expression or "Ranking" in expression or "Margin" in expression:
        # targets are data: torch gives them no gradient
        n = 3 if "Triplet" in expression else len(inputs) - 1
        fixed, free = inputs[n:], inputs[:n]
    else:
        fixed, free = inputs[1:], inputs[:1]
    model, twin = make(expression, nn, reduction), make(expression, torch.nn, reduction)
    warnings.filterwarnings("ignore", message="reduction: 'mean' divides")  # KLDivLoss
    check_twins(
        lambda *xs: model(*xs, *(as_constant(xs[0], f) for f in fixed)),
        model,
        lambda *xs: twin(*xs, *(torch.from_numpy(f.copy()) for f in fixed)),
        twin,
        free,
    )


def as_constant(like: Any, values: np.ndarray) -> Any:
    """A constant of the running trace that keeps its doubles."""
    trace = like.trace
    if values.dtype.kind == "f":
        return trace.const(values, "float32")
    return trace.const(values)


def test_every_loss_is_here() -> None:
    named = {e.split("(")[0].split()[0] for e in LOSSES}
    with_heads = {"AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss"}  # test_vocabularies.py
    assert {n for n in nn.__all__ if n.endswith("Loss")} == named | with_heads
