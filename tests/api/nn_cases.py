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
# Of images: the 60 numbers as lines (2, 5, 6), images (1, 2, 5, 6) or (2, 3, 2, 5), and volumes
# (1, 1, 3, 4, 5); weights out of z.
_LINE, _IMAGE, _SMALL = "x.view(2, 5, 6)", "x.view(1, 2, 5, 6)", "x.view(2, 3, 2, 5)"
_CUBE = "x.view(1, 1, 3, 4, 5)"
IMAGES = [
    # convolutions: strides, padding by number and name, dilation, groups, each channel by itself
    f"F.conv1d({_LINE}, z.view(-1)[:30].view(2, 5, 3), b[:2])",
    f"F.conv1d({_LINE}, z.view(-1)[:20].view(4, 5, 1), None, 2)",
    f"F.conv1d({_LINE}, z.view(-1)[:20].view(5, 1, 4), b[:5], padding='same', groups=5)",
    f"F.conv1d({_LINE}, z.view(-1)[:30].view(2, 5, 3), padding=3, dilation=4)",
    f"F.conv2d({_IMAGE}, z.view(-1)[:54].view(3, 2, 3, 3), b[:3], padding=1)",
    f"F.conv2d({_IMAGE}, z.view(-1)[:48].view(4, 2, 3, 2), None, (2, 1), (0, 2), (1, 3))",
    f"F.conv2d({_IMAGE}, z.view(-1)[:24].view(4, 1, 2, 3), b[:4], groups=2, padding='same')",
    f"F.conv2d({_IMAGE}, z.view(-1)[:12].view(2, 2, 1, 3), padding='valid', stride=3)",
    f"F.conv2d({_SMALL}, z.view(-1)[:27].view(3, 1, 3, 3), b[:3], 2, 2, groups=3)",
    f"F.conv3d({_CUBE}, z.view(-1)[:36].view(2, 1, 3, 2, 3), b[:2], (1, 2, 1), (1, 0, 2))",
    f"F.conv3d({_CUBE}, z.view(-1)[:24].view(3, 1, 2, 2, 2), padding='same', dilation=2)",
    f"F.conv_transpose1d({_LINE}, z.view(-1)[:40].view(5, 2, 4), b[:2], 3, 1, 2)",
    f"F.conv_transpose1d({_LINE}, z.view(-1)[:20].view(5, 2, 2), None, 1, 0, 1, dilation=2)",
    f"F.conv_transpose2d({_IMAGE}, z.view(-1)[:54].view(2, 3, 3, 3), b[:3], 2, 1, 1)",
    f"F.conv_transpose2d({_IMAGE}, z.view(-1)[:24].view(2, 2, 2, 3), b[:4], (3, 1), (0, 2), (2, 0),"
    " 2, (1, 2))",
    f"F.conv_transpose2d({_SMALL}, z.view(-1)[:12].view(3, 1, 2, 2), None, 2, groups=3)",
    f"F.conv_transpose3d({_CUBE}, z.view(-1)[:24].view(1, 2, 2, 3, 2), b[:2], (1, 2, 3), (0, 1, 1),"
    " (0, 1, 2))",
    "F.conv_tbc(x.view(5, 4, 3), z.view(-1)[:24].view(4, 3, 2), b[:2], 2)",
    # the largest, the mean, the norm of windows
    *(
        f"F.{kind}_pool{n}d({image}, {arguments})"
        for kind in ("max", "avg")
        for n, image, arguments in (
            (1, _LINE, "3"), (1, _LINE, "3, 2, 1"), (1, _LINE, "4, 3, ceil_mode=True"),
            (2, _IMAGE, "2"), (2, _IMAGE, "(3, 2), (1, 2), (1, 0)"),
            (2, _IMAGE, "3, 2, 1, ceil_mode=True"), (3, _CUBE, "2, (1, 2, 3)"),
            (3, _CUBE, "(2, 3, 2), 2, 1, ceil_mode=True"),
        )
    ),
    f"F.max_pool2d({_IMAGE}, 2, 1, 1, (1, 3))",
    f"F.max_pool3d({_CUBE}, 2, 1, 0, (2, 1, 3))",
    f"F.avg_pool2d({_IMAGE}, 3, 2, 1, True, False)",
    f"F.avg_pool2d({_IMAGE}, 2, divisor_override=3)",
    f"F.avg_pool3d({_CUBE}, 3, 2, 1, count_include_pad=False)",
    *(
        f"F.adaptive_{kind}_pool{n}d({image}, {size})"
        for kind in ("max", "avg")
        for n, image, size in (
            (1, _LINE, "4"), (1, _LINE, "8"), (2, _IMAGE, "(3, 4)"), (2, _IMAGE, "(None, 3)"),
            (2, _IMAGE, "1"), (3, _CUBE, "(2, 3, 4)"),
        )
    ),
    f"F.lp_pool1d({_LINE}.abs(), 1.5, 3, 2)",
    f"F.lp_pool2d({_IMAGE}, 2, (3, 2), 2, True)",
    f"F.lp_pool3d({_CUBE}, 2, 2)",
    f"F.lp_pool2d({_IMAGE}, float('inf'), 2)",
    *(
        f"F.max_unpool{n}d(*F.max_pool{n}d({image}, 2, return_indices=True), 2{size})"
        for n, image, size in (
            (1, _LINE, ""), (2, _IMAGE, ", output_size=(5, 6)"),
            (2, _SMALL, ", output_size=(2, 5)"),
            (3, _CUBE, ", output_size=(3, 4, 5)"),
        )
    ),
    # norms of images
    f"F.group_norm({_SMALL}, 3, w[:3], b[:3])",
    "F.group_norm(x.view(2, 6, 5), 2, w[:6], b[:6], 0.1)",
    f"F.instance_norm({_SMALL}, weight=w[:3], bias=b[:3])",
    f"F.instance_norm({_LINE}, b[:5], w[:5], use_input_stats=False)",
    f"F.batch_norm({_SMALL}, None, None, w[:3], b[:3], True)",
    f"F.local_response_norm({_LINE}, 3, 0.5, 0.75, 2.0)",
    f"F.local_response_norm({_LINE}, 4, 0.9)",
    f"F.layer_norm({_SMALL}, (3, 2, 5))",
    f"F.rms_norm({_SMALL}, (2, 5), None, 1e-3)",
    # other sizes
    *(
        f"F.interpolate({image}, {size}, mode='{mode}'{more})"
        for image, mode, more in (
            (_LINE, "nearest", ""), (_LINE, "nearest-exact", ""), (_LINE, "linear", ""),
            (_LINE, "linear", ", align_corners=True"), (_LINE, "area", ""),
        )
        for size in ("9", "4", "scale_factor=1.7")
    ),
    *(
        f"F.interpolate({_IMAGE}, {size}, mode='{mode}'{more})"
        for mode, more in (
            ("nearest", ""), ("nearest-exact", ""), ("bilinear", ""),
            ("bilinear", ", align_corners=True"), ("bilinear", ", antialias=True"),
            ("bicubic", ""), ("bicubic", ", align_corners=True"), ("bicubic", ", antialias=True"),
            ("area", ""),
        )
        for size in ("(7, 4)", "(2, 9)", "scale_factor=(1.3, 0.6)")
    ),
    *(
        f"F.interpolate({_CUBE}, (5, 3, 7), mode='{mode}')"
        for mode in ("nearest", "trilinear", "area")
    ),
    f"F.interpolate({_CUBE}, (5, 3, 7), mode='trilinear', align_corners=True)",
    f"F.interpolate({_IMAGE}, scale_factor=1.45, mode='bilinear', recompute_scale_factor=True)",
    "F.pixel_shuffle(x.view(1, 12, 1, 5), 2)",
    "F.pixel_unshuffle(x.view(1, 5, 2, 6), 2)",
    "F.channel_shuffle(x.view(1, 6, 2, 5), 3)",
    # windows side by side, and back
    f"F.unfold({_IMAGE}, (2, 3), 2, (1, 2), (2, 1))",
    "F.fold(x.view(1, 10, 6), (4, 5), (2, 5), 1, (0, 2), (1, 4))",
    "F.fold(x.view(12, 5), (2, 6), 2)",
    # any places: a grid whose places lead out on all sides
    *(
        f"F.grid_sample({_IMAGE}, z.view(-1)[:24].view(1, 3, 4, 2) * 1.3, '{mode}', '{padding}', "
        f"{corners})"
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (True, False)
    ),
    *(
        f"F.grid_sample({_CUBE}, z.view(-1)[:36].view(1, 2, 3, 2, 3), '{mode}', '{padding}', False)"
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
    ),
    f"F.grid_sample({_IMAGE}, F.affine_grid(z.view(-1)[:6].view(1, 2, 3), [1, 2, 3, 4], True),"
    " align_corners=True)",
    "F.grid_sample(v.view(1, 2, 5, 6), F.affine_grid(x.view(10, 2, 3)[3:4], [1, 2, 3, 4], False),"
    " align_corners=False)",
]  # fmt: skip
_SEEN = "(z.view(-1)[:25].view(5, 5) > -0.8)"
_HEADS = "x.view(1, 2, 5, 6), z.view(1, 2, 5, 6), v.view(1, 2, 5, 6)"
_SHARED = "x.view(1, 4, 3, 5), z.view(-1)[:30].view(1, 2, 3, 5), v.view(-1)[:30].view(1, 2, 3, 5)"
ATTENTION = [
    f"F.scaled_dot_product_attention({given})"
    for given in (
        "x, z, v",
        _HEADS,
        f"{_HEADS}, is_causal=True",
        f"{_HEADS}, scale=0.7",
        f"{_HEADS}, {_SEEN}",
        f"{_HEADS}, v.view(-1)[:50].view(1, 2, 5, 5)",
        f"{_HEADS}, v.view(-1)[:10].view(1, 2, 1, 5)",
        f"{_SHARED}, enable_gqa=True",
        f"{_SHARED}, is_causal=True, enable_gqa=True",
        "x.view(2, 3, 10), z.view(2, 3, 10), v.view(-1)[:24].view(2, 3, 4)",
        "x.view(2, 1, 5, 2, 3), z.view(2, 1, 5, 2, 3), v.view(2, 1, 5, 2, 3)",
        "z.view(2, 3, 10), x.view(2, 3, 10), v.view(2, 3, 10), is_causal=True",
        "z.view(2, 3, 10), v.view(2, 3, 10), x.view(2, 3, 10)",
        "z.view(2, 3, 10)[:1], x.view(2, 3, 10), v.view(2, 3, 10)",
        "z.view(1, 2, 5, 6), v.view(1, 2, 5, 6), z.view(1, 2, 5, 6), x[:1, :5]",
    )
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
    *IMAGES,
    *ATTENTION,
    "F.pdist(x)",
    "F.pdist(x, 1.0)",
    "F.linear_cross_entropy(x, m, t % 7)",
    "F.linear_cross_entropy(x, m, t % 7, linear_bias=bm, weight=w[:7], label_smoothing=0.2)",
    "F.linear_cross_entropy(x, m, ti % 7, ignore_index=6, reduction='sum')",
    "F.linear_cross_entropy(x[0], m, t[0] % 7, reduction='none')",
    "F.linear_cross_entropy(x, m[:6].view(3, 2, 10), t3 % 3, reduction='none')",
    "F.ctc_loss(F.log_softmax(x.view(6, 2, 5), 2), t3.view(2, 6) % 4 + 1, (6, 5), (2, 1))",
    "F.ctc_loss(x.view(5, 2, 6), t % 5, (5, 4), (2, 4), blank=5, zero_infinity=True)",
    "F.ctc_loss(x.view(6, 2, 5), t % 4 + 1, (6, 6), (2, 4), reduction='none')",
    "F.embedding(t, x.T, scale_grad_by_freq=True)",
    *(
        f"F.embedding_bag(t.view(-1, 2), x.T, mode='{mode}', padding_idx={row})"
        for mode in ("mean", "sum", "max")
        for row in (None, 3)
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
