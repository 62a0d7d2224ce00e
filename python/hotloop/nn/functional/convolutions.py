"""Convolutions, transposed ones too, and what unfolds and folds their windows."""

from __future__ import annotations

from hotloop.errors import ConfigError, ShapeError
from hotloop.graph import views
from hotloop.graph.build import Operand, add_node, cast, lift, lift_float
from hotloop.graph.value import Tensor
from hotloop.nn.functional.arguments import Count, make_functions
from hotloop.nn.functional.windows import (
    Pads,
    Sizes,
    check_channels,
    give_images,
    lift_images,
    per_dim,
)

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d",
]  # fmt: skip


def _weights(
    what: str, n: int, weight: Operand, bias: Operand | None, groups: Count
) -> tuple[Tensor, Tensor | None, int]:
    """Weight and bias as tensors of one dtype, and the groups."""
    w = lift(weight, what=what)
    if w.ndim != n + 2 or 0 in w.shape:
        raise ShapeError(
            f"{what}: the weight must have {n + 2} dims of at least 1, got shape {w.shape}"
        )
    (g,) = per_dim(what, "groups", groups, 1, 1)
    if w.shape[0] % g:
        raise ShapeError(
            f"{what}: groups must divide the weight's first dim, {w.shape[0]}, got {g}"
        )
    return w, None if bias is None else cast(lift(bias, what=what), w.dtype), g


def _check_bias(what: str, bias: Tensor | None, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(f"{what}: the bias must have shape ({channels},), got {bias.shape}")


def _paddings(
    what: str,
    padding: Pads | str,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before and behind each spatial dim."""
    n = len(kernel)
    if padding == "valid":
        return (0,) * n, (0,) * n
    if padding == "same":
        if max(stride) > 1:
            raise ConfigError(
                f'{what}: padding "same" needs stride 1, got {stride}; write the padding as numbers'
            )
        total = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    if isinstance(padding, str):
        raise ConfigError(f'{what}: padding must be numbers, "same" or "valid", got {padding!r}')
    both = per_dim(what, "padding", padding, n, 0)
    return both, both


def _conv(
    n: int,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sizes,
    padding: Pads | str,
    dilation: Sizes,
    groups: Count,
) -> Tensor:
    what = f"conv{n}d"
    w, b, g = _weights(what, n, weight, bias, groups)
    x, without_batch = lift_images(input, what, n)
    parts = f"{w.shape[1]} of the weight in {g} groups"
    check_channels(what, x, w.shape[1] * g, parts, without_batch)
    _check_bias(what, b, w.shape[0])
    kernel = w.shape[2:]
    strides = per_dim(what, "stride", stride, n, 1)
    dilations = per_dim(what, "dilation", dilation, n, 1)
    before, after = _paddings(what, padding, kernel, strides, dilations)
    for d, (size, k) in enumerate(zip(x.shape[2:], kernel)):
        span, room = dilations[d] * (k - 1) + 1, size + before[d] + after[d]
        if span > room:
            raise ShapeError(
                f"{what}: the kernel must fit into the padded input: along spatial dim {d} it "
                f"spans {span} of {room} elements (input of shape {x.shape}, weight {w.shape})"
            )
    operands = (cast(x, w.dtype), w) if b is None else (cast(x, w.dtype), w, b)
    y = add_node(
        "conv", *operands, stride=strides, dilation=dilations, before=before, after=after, groups=g
    )
    return give_images(y, without_batch)


def conv1d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Pads | str = 0,
    dilation: Sizes = 1,
    groups: Count = 1,
) -> Tensor:
    """Convolution (cross-correlation) over one spatial dim.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or ``(C, L)``.
    weight : Tensor
        ``(O, C / groups, K)``.
    bias : Tensor, optional
        ``(O,)``.
    stride : int
        Elements from one window to the next.
    padding : int or {"same", "valid"}
        Zeros on both sides; "same": as many as keep L, for stride 1; "valid": none.
    dilation : int
        Elements from one of the kernel's to the next.
    groups : int
        Channels in and out are divided into so many, which do not mix.

    Returns
    -------
    Tensor
        ``(N, O, (L + 2 padding - dilation (K - 1) - 1) // stride + 1)``.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or the kernel does not fit the padded input.
    ConfigError
        For a stride, dilation or number of groups below 1, or a padding that is none.
    """
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Pads | str = 0,
    dilation: Sizes = 1,
    groups: Count = 1,
) -> Tensor:
    """Convolution (cross-correlation) over two spatial dims.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or ``(C, H, W)``.
    weight : Tensor
        ``(O, C / groups, KH, KW)``.
    bias : Tensor, optional
        ``(O,)``.
    stride : int or (int, int)
        Elements from one window to the next.
    padding : int, (int, int) or {"same", "valid"}
        Zeros on both sides; "same": as many as keep H and W, for stride 1; "valid": none.
    dilation : int or (int, int)
        Elements from one of the kernel's to the next.
    groups : int
        Channels in and out are divided into so many, which do not mix.

    Returns
    -------
    Tensor
        ``(N, O, H', W')`` with ``H' = (H + 2 padding - dilation (KH - 1) - 1) // stride + 1``.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or the kernel does not fit the padded input.
    ConfigError
        For a stride, dilation or number of groups below 1, or a padding that is none.
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Pads | str = 0,
    dilation: Sizes = 1,
    groups: Count = 1,
) -> Tensor:
    """Convolution (cross-correlation) over three spatial dims.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or ``(C, D, H, W)``.
    weight : Tensor
        ``(O, C / groups, KD, KH, KW)``.
    bias : Tensor, optional
        ``(O,)``.
    stride : int or (int, int, int)
        Elements from one window to the next.
    padding : int, (int, int, int) or {"same", "valid"}
        Zeros on both sides; "same": as many as keep the sizes, for stride 1; "valid": none.
    dilation : int or (int, int, int)
        Elements from one of the kernel's to the next.
    groups : int
        Channels in and out are divided into so many, which do not mix.

    Returns
    -------
    Tensor
        ``(N, O, D', H', W')``; sizes as of conv2d.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or the kernel does not fit the padded input.
    ConfigError
        For a stride, dilation or number of groups below 1, or a padding that is none.
    """
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    n: int,
    input: Operand,
    weight: Operand,
    bias: Operand | None,
    stride: Sizes,
    padding: Pads,
    output_padding: Pads,
    groups: Count,
    dilation: Sizes,
) -> Tensor:
    what = f"conv_transpose{n}d"
    w, b, g = _weights(what, n, weight, bias, groups)
    y, without_batch = lift_images(input, what, n)
    check_channels(what, y, w.shape[0], "the weight's first dim", without_batch)
    channels = w.shape[1] * g
    _check_bias(what, b, channels)
    kernel = w.shape[2:]
    strides = per_dim(what, "stride", stride, n, 1)
    dilations = per_dim(what, "dilation", dilation, n, 1)
    paddings = per_dim(what, "padding", padding, n, 0)
    extra = per_dim(what, "output_padding", output_padding, n, 0)
    sizes = []
    for d in range(n):
        if extra[d] >= max(strides[d], dilations[d]):
            raise ConfigError(
                f"{what}: output_padding must be less than stride or dilation, got {extra[d]} for "
                f"stride {strides[d]}, dilation {dilations[d]}"
            )
        span = (y.shape[2 + d] - 1) * strides[d] + dilations[d] * (kernel[d] - 1) + 1
        sizes.append(span - 2 * paddings[d] + extra[d])
    if min(sizes) < 1:
        raise ShapeError(
            f"{what}: the output must have elements, got sizes {tuple(sizes)} from input of shape "
            f"{y.shape}, weight {w.shape} and padding {paddings}"
        )
    # More than stride - 1 of it are zeros behind the input: the gradient of a convolution knows
    # no more than those that its stride leaves over.
    more = [(0, e // s) for e, s in zip(extra, strides)]
    if any(after for _, after in more):
        counts = [0, 0, 0, 0, *(count for pair in more for count in pair)]
        y = add_node("pad", y, before=counts[::2], after=counts[1::2], value=0.0, mode=0)
    operands = (cast(y, w.dtype), w) if b is None else (cast(y, w.dtype), w, b)
    x = add_node(
        "conv_transpose", *operands, stride=strides, dilation=dilations, before=paddings,
        after=paddings, groups=g, size=tuple(sizes),
    )  # fmt: skip
    return give_images(x, without_batch)


def conv_tbc(input: Operand, weight: Operand, bias: Operand, pad: int = 0) -> Tensor:
    """Convolution over time, the first dim.

    Parameters
    ----------
    input : Tensor
        ``(T, N, C)``.
    weight : Tensor
        ``(K, C, O)``.
    bias : Tensor
        ``(O,)``.
    pad : int
        Zeros on both sides.

    Returns
    -------
    Tensor
        ``(T + 2 pad - K + 1, N, O)``.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or the kernel does not fit the padded input.
    ConfigError
        For a padding below 0.
    """
    x, w = lift_float(input, "conv_tbc"), lift_float(weight, "conv_tbc")
    if x.ndim != 3 or w.ndim != 3:
        raise ShapeError(
            f"conv_tbc: input must be (T, N, C) and weight (K, C, O), got {x.shape} and {w.shape}"
        )
    y = conv1d(views.permute(x, (1, 2, 0)), views.permute(w, (2, 1, 0)), bias, padding=pad)
    return views.permute(y, (2, 0, 1))


def conv_transpose1d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Pads = 0,
    output_padding: Pads = 0,
    groups: Count = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of conv1d for its input: each element of the input spreads the kernel.

    Parameters
    ----------
    input : Tensor
        ``(N, C, L)``, or ``(C, L)``.
    weight : Tensor
        ``(C, O / groups, K)``.
    bias : Tensor, optional
        ``(O,)``.
    stride : int
        Elements of the output from one of the input's to the next.
    padding : int
        Elements that are left out of the output on both sides.
    output_padding : int
        Elements more behind, less than stride or dilation.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    dilation : int
        Elements from one of the kernel's to the next.

    Returns
    -------
    Tensor
        ``(N, O, (L - 1) stride - 2 padding + dilation (K - 1) + output_padding + 1)``.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or nothing is left.
    ConfigError
        For a stride, dilation or number of groups below 1, or an output_padding too large.
    """
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Pads = 0,
    output_padding: Pads = 0,
    groups: Count = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of conv2d for its input: each element of the input spreads the kernel.

    Parameters
    ----------
    input : Tensor
        ``(N, C, H, W)``, or ``(C, H, W)``.
    weight : Tensor
        ``(C, O / groups, KH, KW)``.
    bias : Tensor, optional
        ``(O,)``.
    stride : int or (int, int)
        Elements of the output from one of the input's to the next.
    padding : int or (int, int)
        Elements that are left out of the output on both sides.
    output_padding : int or (int, int)
        Elements more behind, less than stride or dilation.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    dilation : int or (int, int)
        Elements from one of the kernel's to the next.

    Returns
    -------
    Tensor
        ``(N, O, H', W')`` with
        ``H' = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1``.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or nothing is left.
    ConfigError
        For a stride, dilation or number of groups below 1, or an output_padding too large.
    """
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Pads = 0,
    output_padding: Pads = 0,
    groups: Count = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """The gradient of conv3d for its input: each element of the input spreads the kernel.

    Parameters
    ----------
    input : Tensor
        ``(N, C, D, H, W)``, or ``(C, D, H, W)``.
    weight : Tensor
        ``(C, O / groups, KD, KH, KW)``.
    bias : Tensor, optional
        ``(O,)``.
    stride : int or (int, int, int)
        Elements of the output from one of the input's to the next.
    padding : int or (int, int, int)
        Elements that are left out of the output on both sides.
    output_padding : int or (int, int, int)
        Elements more behind, less than stride or dilation.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    dilation : int or (int, int, int)
        Elements from one of the kernel's to the next.

    Returns
    -------
    Tensor
        ``(N, O, D', H', W')``; sizes as of conv_transpose2d.

    Raises
    ------
    ShapeError
        If the operands do not fit each other, or nothing is left.
    ConfigError
        For a stride, dilation or number of groups below 1, or an output_padding too large.
    """
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


make_functions(globals(), __all__)
