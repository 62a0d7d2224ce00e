"""Cases for nn.functional that read the same in torch and in hotloop, and torch's answers.

A case is an expression over F, x, y and the inputs below; its value and the gradient of
sum(value * ramp) by x are stored in nn_cases.npz, computed by torch in float64. Run as a script
in an environment with torch, this file writes them anew; tests/parity holds them to torch.
"""

from pathlib import Path
from typing import Any

import numpy as np

STORED = Path(__file__).with_suffix(".npz")


def inputs() -> dict[str, np.ndarray]:
    """The arrays that cases name; integers are int64, everything else float64."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((6, 10)) * 2
    x[5, :8] = [0.0, 1.0, -1.0, 3.0, -3.0, 6.0, 0.5, -0.5]  # corners of the piecewise functions
    z = rng.standard_normal((6, 10))
    e = np.exp(z)
    listed = np.full((6, 10), -1)
    listed[0, :3] = 1, 4, 2
    listed[1, 0] = 5
    listed[3] = rng.permutation(10)
    target = rng.integers(0, 10, 6)
    ignored = target.copy()
    ignored[2] = -100
    p = rng.uniform(0.05, 0.95, (6, 10))
    return {
        "x": x,
        "z": z,
        "v": rng.standard_normal((6, 10)),
        "p": p,
        "soft": e / e.sum(1, keepdims=True),
        "bits": (rng.random((6, 10)) > 0.5).astype(np.float64),
        "signs": np.sign(z),
        "counts": rng.integers(0, 6, (6, 10)).astype(np.float64),
        "w": rng.uniform(0.2, 1.2, 10),
        "b": rng.standard_normal(10),
        "m": rng.standard_normal((7, 10)),
        "bm": rng.standard_normal(7),
        "t": target,
        "ti": ignored,
        "t3": rng.integers(0, 5, (6, 2)),
        "listed": listed,
    }


_POINTWISE = [
    *("relu", "relu6", "silu", "mish", "selu", "hardsigmoid", "hardswish", "logsigmoid", "gelu"),
    *("softsign", "tanhshrink", "elu", "celu", "leaky_relu", "softplus", "softshrink", "glu"),
    *("hardshrink", "hardtanh", "sigmoid", "tanh"),
]
_REDUCED = [
    "F.cross_entropy(x, t{r})",
    "F.cross_entropy(x, ti, w, label_smoothing=0.2{r})",
    "F.cross_entropy(x, soft, w, label_smoothing=0.1{r})",
    "F.cross_entropy(x.view(6, 5, 2), t3{r})",
    "F.nll_loss(F.log_softmax(x, 1), ti, w{r})",
    "F.binary_cross_entropy(F.sigmoid(x), bits, w{r})",
    "F.binary_cross_entropy_with_logits(x, bits, v * v, pos_weight=w{r})",
    "F.mse_loss(x, z{r})",
    "F.mse_loss(x, z, weight=p{r})",
    "F.l1_loss(x, z{r})",
    "F.smooth_l1_loss(x, z, beta=0.3{r})",
    "F.huber_loss(x, z, delta=0.7{r})",
    "F.huber_loss(x, z, weight=p{r})",
    "F.kl_div(x, soft{r})",
    "F.kl_div(x, z, log_target=True{r})",
    "F.hinge_embedding_loss(x, signs, 0.8{r})",
    "F.margin_ranking_loss(x, z, signs, 0.2{r})",
    "F.soft_margin_loss(x, signs{r})",
    "F.multi_margin_loss(x, t, 2, 0.7, w{r})",
    "F.multilabel_margin_loss(x, listed{r})",
    "F.multilabel_soft_margin_loss(x, bits, w{r})",
    "F.cosine_embedding_loss(x, z, signs[:, 0], 0.2{r})",
    "F.triplet_margin_loss(x, z, v{r})",
    "F.triplet_margin_loss(x, z, v, 2.0, swap=True{r})",
    "F.poisson_nll_loss(x, counts, full=True{r})",
    "F.gaussian_nll_loss(x, z, p[:, 0], True{r})",
]
CASES = [
    *(f"F.{name}(x)" for name in _POINTWISE),
    "F.gelu(x, approximate='tanh')",
    "F.elu(x, 0.7)",
    "F.celu(x, 0.7)",
    "F.softplus(x, 2.0, 5.0)",
    "F.threshold(x, 0.5, -2.0)",
    "F.hardtanh(x, -2.0, 3.0)",
    "F.prelu(x, w)",
    "F.rrelu(x)",
    *(f"F.{name}(x, {d})" for name in ("softmax", "softmin", "log_softmax") for d in (0, 1)),
    "F.linear(x, m, bm)",
    "F.linear(x[0], m)",
    "F.linear(x.view(2, 3, 10), m, bm)",
    "F.bilinear(x, z, m[:3].view(3, 1, 10).expand(3, 10, 10), bm[:3])",
    "F.normalize(x)",
    "F.normalize(x, 1.0, 0)",
    "F.cosine_similarity(x, z)",
    "F.pairwise_distance(x, z, 1.5)",
    "F.layer_norm(x, (10,), w, b)",
    "F.layer_norm(x.view(3, 4, 5), (4, 5))",
    "F.rms_norm(x, (10,), w)",
    "F.batch_norm(x, None, None, w, b, True)",
    "F.batch_norm(x.view(3, 10, 2), b, w, w, b)",
    "F.pad(x, (1, 2), 'constant', 1.5)",
    "F.pad(x, (1, -1, 0, 2))",
    "F.pad(x.view(2, 3, 10), (2, 1), 'reflect')",
    "F.pad(x.view(2, 3, 10), (3, 1), 'replicate')",
    "F.pad(x.view(2, 3, 10), (2, 3), 'circular')",
    "F.kl_div(x, soft, reduction='batchmean')",
    "F.embedding(t, x.T, 3)",
    *(
        case.format(r=f", reduction='{reduction}'")
        for case in _REDUCED
        for reduction in ("mean", "sum", "none")
    ),
]


def ramp(shape: tuple[int, ...]) -> np.ndarray:
    """Weights of a value's elements, so that a gradient sees each of them."""
    n = int(np.prod(shape))
    return np.linspace(0.5, 1.5, n).reshape(shape) if n > 1 else np.full(shape, 0.75)


def torch_answers() -> dict[str, np.ndarray]:
    """Value and gradient of every case by torch."""
    import torch
    from torch.nn import functional

    answers = {}
    for i, case in enumerate(CASES):
        names: dict[str, Any] = {k: torch.from_numpy(v.copy()) for k, v in inputs().items()}
        names["x"].requires_grad_(True)
        value = eval(case, {"F": functional}, names)
        weighted = (value * torch.from_numpy(ramp(tuple(value.shape)))).sum()
        (gradient,) = torch.autograd.grad(weighted, names["x"])
        answers[f"value{i}"] = value.detach().numpy()
        answers[f"gradient{i}"] = gradient.numpy()
    return answers


if __name__ == "__main__":
    np.savez_compressed(STORED, **torch_answers())
