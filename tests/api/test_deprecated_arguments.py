"""Losses take the two arguments that torch deprecated where torch has them, and only as None."""

import inspect
from pathlib import Path

import hotloop
import numpy as np
import pytest
from hotloop import ConfigError, nn
from hotloop.nn import functional as F

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
D = "size_average reduce reduction"
FUNCTIONS = {
    "binary_cross_entropy": f"input target weight {D}",
    "binary_cross_entropy_with_logits": f"input target weight {D} pos_weight",
    "cosine_embedding_loss": f"input1 input2 target margin {D}",
    "cross_entropy": (
        "input target weight size_average ignore_index reduce reduction label_smoothing"
    ),
    "hinge_embedding_loss": f"input target margin {D}",
    "kl_div": f"input target {D} log_target",
    "l1_loss": f"input target {D} weight",
    "margin_ranking_loss": f"input1 input2 target margin {D}",
    "mse_loss": f"input target {D} weight",
    "multi_margin_loss": f"input target p margin weight {D}",
    "multilabel_margin_loss": f"input target {D}",
    "multilabel_soft_margin_loss": f"input target weight {D}",
    "nll_loss": "input target weight size_average ignore_index reduce reduction",
    "poisson_nll_loss": "input target log_input full size_average eps reduce reduction",
    "smooth_l1_loss": f"input target {D} beta",
    "soft_margin_loss": f"input target {D}",
    "triplet_margin_loss": f"anchor positive negative margin p eps swap {D}",
}
CLASSES = {
    "BCELoss": f"weight {D}",
    "BCEWithLogitsLoss": f"weight {D} pos_weight",
    "CosineEmbeddingLoss": f"margin {D}",
    "CrossEntropyLoss": "weight size_average ignore_index reduce reduction label_smoothing",
    "HingeEmbeddingLoss": f"margin {D}",
    "KLDivLoss": f"{D} log_target",
    "L1Loss": D,
    "MSELoss": D,
    "MarginRankingLoss": f"margin {D}",
    "MultiLabelMarginLoss": D,
    "MultiLabelSoftMarginLoss": f"weight {D}",
    "MultiMarginLoss": f"p margin weight {D}",
    "NLLLoss": "weight size_average ignore_index reduce reduction",
    "PoissonNLLLoss": "log_input full size_average eps reduce reduction",
    "SmoothL1Loss": f"{D} beta",
    "SoftMarginLoss": D,
    "TripletMarginLoss": f"margin p eps swap {D}",
}


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        *((getattr(F, name), names) for name, names in FUNCTIONS.items()),
        *((getattr(nn, name), names) for name, names in CLASSES.items()),
    ],
    ids=[*FUNCTIONS, *CLASSES],
)
def test_arguments_stand_where_torch_has_them(loss, names):
    assert list(inspect.signature(loss).parameters) == names.split()
    assert loss.__doc__.count("size_average, reduce\n    Deprecated in torch: must be None.") == 1


def test_others_lack_them():
    for name in ("huber_loss", "gaussian_nll_loss", "triplet_margin_with_distance_loss"):
        assert "reduce" not in inspect.signature(getattr(F, name)).parameters
    assert list(inspect.signature(nn.HuberLoss).parameters) == ["reduction", "delta"]


def test_they_must_be_none():
    for call, name in [
        (lambda: F.mse_loss(X, Y, True), "mse_loss"),
        (lambda: F.cross_entropy(X, Y, reduce=False), "cross_entropy"),
        (lambda: nn.MSELoss(True), "MSELoss"),
        (lambda: nn.CrossEntropyLoss(None, size_average=False), "CrossEntropyLoss"),
    ]:
        with pytest.raises(ConfigError, match=f"^{name}: size_average and reduce must be None"):
            call()


def test_arguments_by_position_mean_what_torch_means():
    assert F.mse_loss(X, Y, None, None, "sum") == 12
    assert F.poisson_nll_loss(Y, Y, True, False, None, 1e-8, None, "sum") == 12
    assert nn.CrossEntropyLoss(None, None, 3, None, "sum", 0.1).ignore_index == 3
    assert nn.SmoothL1Loss(None, None, "mean", 0.5).beta == 0.5


def test_they_are_written_once():
    sources = Path(hotloop.__file__).parent.rglob("*.py")
    found = [path.name for path in sources if "size_average" in path.read_text("utf-8")]
    assert found == ["deprecated.py"]
