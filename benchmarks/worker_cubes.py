"""One side of ``python -m benchmarks.cubes``: pipelines of hyperspectral cubes.

python -m benchmarks.worker_cubes hotloop|default|tuned|onepass|onepass64 [--threads N] [--smoke]

default   as the users of such pipelines have it: each node is fitted by a pass in which its
          ancestors run again, forward in every step, batches stacked of cubes
tuned     outputs of fitted nodes kept, batches as views, steps that compute what they need
onepass   phase 1 alone: all nodes from one Gram matrix of float32 products, float64 sums
onepass64 the same of float64 products
"""

from __future__ import annotations

import argparse
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.worker import serve_cases

BATCH, WIDTHS = 16, (50, 20, 10, 20, 50)
EPOCHS = 5


def make_cubes(*, smoke: bool) -> Any:
    """Float32 (200, 128, 128, 50) with correlated channels."""
    n, size, channels = (40, 16, 50) if smoke else (200, 128, 50)
    rng = np.random.default_rng(0)
    mix = rng.standard_normal((channels, channels)).astype(np.float32)
    cubes = np.empty((n, size, size, channels), np.float32)
    for cube in cubes:
        noise = rng.standard_normal((size * size, channels), np.float32)
        cube[:] = (noise @ mix + 100).reshape(cube.shape)
    return cubes


def _bases() -> list[Any]:
    rng = np.random.default_rng(0)
    made = []
    for a, b in itertools.pairwise(WIDTHS):
        u, _, vt = np.linalg.svd(rng.normal(size=(b, a)), full_matrices=False)
        made.append((u @ vt).astype(np.float32))
    return made


# ---- hotloop


def hotloop_steps(cubes: Any) -> Callable[[str], Callable[[], int]]:
    """Functions that run a case once."""
    import hotloop as hl
    from hotloop import nn, stats

    class Projection(nn.Module):
        def __init__(self, basis: Any) -> None:
            super().__init__()
            self.norm, self.mix = stats.ZScoreNormalizerGlobal(), nn.Linear(len(basis), len(basis))
            self.register_buffer("basis", basis)

        def forward(self, x: Any) -> Any:
            return self.mix(self.norm(x) @ self.basis.T)

    def chain() -> Any:
        return nn.Sequential(OrderedDict(
            minmax=stats.MinMaxNormalizer(), pca1=stats.TrainablePCA(20),
            pca2=stats.TrainablePCA(10), rx=stats.RXGlobal(),
        ))  # fmt: skip

    alone = hl.DataModule.from_arrays(cubes, val=None, batch_size=BATCH)
    divided = hl.DataModule.from_arrays(cubes, val=0.2, batch_size=BATCH)
    quiet: dict[str, Any] = {
        "accelerator": "cpu", "precision": "32-true", "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, "optimizer": "adam",
        "lr": 1e-3, "scheduler": "constant", "gradient_clip_val": 0.0, "weight_decay": 0.0,
        "restore_best": False,
    }  # fmt: skip

    def phase1() -> int:
        hl.train(chain(), alone, max_epochs=0, **quiet)
        return 1

    def whole() -> int:
        losses = [(stats.OrthogonalityLoss(name), 0.1) for name in ("pca1", "pca2")]
        hl.train(
            chain(), divided, max_epochs=EPOCHS, unfreeze=["pca1", "pca2"], losses=losses,
            metrics=[stats.ExplainedVariance("pca1")], **quiet,
        )  # fmt: skip
        return 1

    layers = OrderedDict[str, nn.Module](minmax=stats.MinMaxNormalizer())
    layers.update((f"layer{i}", Projection(basis)) for i, basis in enumerate(_bases()))
    model = nn.Sequential(layers)

    def gradients() -> int:
        fields = quiet | {"losses": [stats.ReconstructionLoss("minmax")]}
        hl.train(model, divided, max_epochs=EPOCHS, **fields)
        return EPOCHS

    return {"phase1": phase1, "whole": whole, "layers": gradients}.__getitem__


# ---- PyTorch


def torch_steps(cubes: Any, how: str) -> Callable[[str], Callable[[], int]]:
    """The same in PyTorch."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    data = torch.from_numpy(cubes)
    order = np.random.default_rng(0).permutation(len(cubes))
    n_train = round(0.8 * len(cubes))
    train, val = (data[np.sort(part)].contiguous() for part in (order[:n_train], order[n_train:]))
    is_tuned = how != "default"

    def batches(rows: Any) -> Any:
        for i in range(0, len(rows), BATCH):
            part = rows[i : i + BATCH]
            yield part if is_tuned else torch.stack(list(part))

    def normalized(x: Any, ends: Any) -> Any:
        return (x - ends[0]) / (ends[1] - ends[0]).clamp(min=1e-6)

    def moments(parts: Any) -> tuple[Any, Any]:
        total, products, n = 0.0, 0.0, 0
        for part in parts:
            d = part.reshape(-1, part.shape[-1]).double()
            total, products, n = total + d.sum(0), products + d.T @ d, n + len(d)
        mean = total / n
        return mean, (products - n * torch.outer(mean, mean)) / (n - 1)

    def components(covariance: Any, k: int) -> Any:
        return torch.linalg.eigh(covariance)[1][:, -k:].flip(1).T

    def ends_of(rows: Any) -> Any:
        found = torch.stack([torch.stack(torch.aminmax(part)) for part in batches(rows)])
        return torch.stack([found[:, 0].amin(), found[:, 1].amax()])

    @torch.no_grad()
    def fit(rows: Any) -> Any:
        """MinMax, two PCAs, RX."""
        if how.startswith("onepass"):
            return fit_at_once(rows)
        ends = ends_of(rows)
        mean1, covariance = moments(normalized(part, ends) for part in batches(rows))
        mean1, w1 = mean1.float(), components(covariance, 20).float()

        def first(part: Any) -> Any:
            return (normalized(part, ends) - mean1) @ w1.T

        if is_tuned:  # the outputs of what is fitted are kept
            kept = torch.empty(*rows.shape[:-1], 20)
            for out, part in zip(batches(kept), batches(rows), strict=True):
                torch.matmul(normalized(part, ends) - mean1, w1.T, out=out)
            inputs, into = kept, lambda part: part
        else:
            inputs, into = rows, first
        mean2, covariance = moments(into(part) for part in batches(inputs))
        mean2, w2 = mean2.float(), components(covariance, 10).float()
        mean, covariance = moments((into(part) - mean2) @ w2.T for part in batches(inputs))
        inverse = torch.linalg.inv(covariance + 1e-6 * torch.eye(10).double())
        return ends, mean1, w1, mean2, w2, mean.float(), inverse.float()

    def fit_at_once(rows: Any) -> Any:
        shift = rows[0].reshape(-1, rows.shape[-1]).mean(0)
        if how == "onepass64":
            shift = shift.double()
        total, products, n, low, high = 0.0, 0.0, 0, [], []
        for part in batches(rows):
            x = part.reshape(-1, part.shape[-1])
            ends = torch.aminmax(x)
            low.append(ends[0])
            high.append(ends[1])
            d = (x.double() if how == "onepass64" else x) - shift
            total = total + d.sum(0, dtype=torch.float64)
            products, n = products + (d.T @ d).double(), n + len(x)
        scale = 1 / (max(high) - min(low)).clamp(min=1e-6).double()
        mean = total / n
        covariance = (products - n * torch.outer(mean, mean)) / (n - 1) * scale * scale
        w1 = components(covariance, 20)
        covariance = w1 @ covariance @ w1.T
        w2 = components(covariance, 10)
        covariance = w2 @ covariance @ w2.T
        return torch.linalg.inv(covariance + 1e-6 * torch.eye(10).double())

    def phase1() -> int:
        fit(data)
        return 1

    def away(w: Any) -> Any:
        return 0.1 * (w @ w.T - torch.eye(len(w))).square().sum()

    def whole() -> int:
        ends, mean1, w1, mean2, w2, mean, inverse = fit(train)
        weights = [nn.Parameter(w1), nn.Parameter(w2)]
        optimizer = torch.optim.Adam(weights, lr=1e-3)

        def forward(x: Any) -> Any:
            z = normalized(x, ends)
            y = (z - mean1) @ weights[0].T
            if is_tuned:
                return z, y
            d = (y - mean2) @ weights[1].T - mean
            return z, y, ((d @ inverse) * d).sum(-1, keepdim=True)

        for _ in range(EPOCHS):
            for i in torch.randperm(len(train)).split(BATCH):
                if not is_tuned:
                    forward(torch.stack([train[int(j)] for j in i]))
                loss = away(weights[0]) + away(weights[1])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                left = total = 0.0
                for part in batches(val):
                    z, y = forward(part)[:2]
                    z = z - mean1
                    left += float((z - y @ weights[0]).square().sum())
                    total += float(z.square().sum())
                    float(away(weights[0]) + away(weights[1]))
        return 1

    def layers() -> Callable[[], int]:
        ends = ends_of(train)
        bases = [torch.from_numpy(basis) for basis in _bases()]
        mixes = nn.ModuleList(nn.Linear(len(basis), len(basis)) for basis in bases)
        norms: list[tuple[Any, Any]] = []
        with torch.no_grad():  # fitted once, before what is timed
            for k in range(len(bases)):
                found = moments(run(part, ends, bases[:k], mixes, norms) for part in batches(train))
                norms.append((found[0].float(), found[1].diagonal().sqrt().float() + 1e-8))
        optimizer = torch.optim.Adam(mixes.parameters(), lr=1e-3, fused=is_tuned or None)

        def epoch() -> int:
            for i in torch.randperm(len(train)).split(BATCH):
                x = train[i] if is_tuned else torch.stack([train[int(j)] for j in i])
                target = normalized(x, ends)
                loss = F.mse_loss(run(x, ends, bases, mixes, norms), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if not is_tuned:
                    float(loss.detach())
            with torch.no_grad():
                for x in batches(val):
                    F.mse_loss(run(x, ends, bases, mixes, norms), normalized(x, ends)).item()
            return 1

        return epoch

    def run(x: Any, ends: Any, bases: list[Any], mixes: Any, norms: list[Any]) -> Any:
        y = normalized(x, ends)
        for basis, mix, (mean, std) in zip(bases, mixes, norms, strict=False):
            y = mix(((y - mean) / std) @ basis.T)
        return y

    def make(case: str) -> Callable[[], int]:
        return layers() if case == "layers" else {"phase1": phase1, "whole": whole}[case]

    return make


def main() -> None:
    """Serves slices of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=["hotloop", "default", "tuned", "onepass", "onepass64"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    cubes = make_cubes(smoke=options.smoke)
    if options.how == "hotloop":
        serve_cases(hotloop_steps(cubes))
        return
    import torch

    torch.set_num_threads(options.threads)
    serve_cases(torch_steps(cubes, options.how), version=torch.__version__)


if __name__ == "__main__":
    main()
