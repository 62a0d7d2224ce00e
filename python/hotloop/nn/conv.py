"""Convolution layers, transposed ones, and those that learn their channels from the first input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

from hotloop.errors import ConfigError, ShapeError
from hotloop.nn import functional as F
from hotloop.nn.functional.arguments import Count, Size
from hotloop.nn.functional.windows import Pads, Sizes, per_dim
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.recipes import Uniform
from hotloop.nn.uninitialized import UninitializedParameter

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d",
    "LazyConv1d", "LazyConv2d", "LazyConv3d", "LazyConvTranspose1d", "LazyConvTranspose2d",
    "LazyConvTranspose3d",
]  # fmt: skip

_MODES = {
    "zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular",
}  # fmt: skip


class _Conv(Module):
    """What convolution layers share: sizes, parameters, and how they are shown."""

    n_dims: ClassVar[int]
    is_transposed: ClassVar[bool] = False
    weight: Parameter
    bias: Parameter | None

    def _set_up(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes,
        padding: Pads | str,
        dilation: Sizes,
        groups: Count,
        bias: bool,
        padding_mode: str,
        output_padding: Pads = 0,
        is_lazy: bool = False,
    ) -> None:
        name, n = type(self).__name__, self.n_dims
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, n, 1)
        self.stride = per_dim(name, "stride", stride, n, 1)
        self.dilation = per_dim(name, "dilation", dilation, n, 1)
        self.padding = (
            padding if isinstance(padding, str) else per_dim(name, "padding", padding, n, 0)
        )
        self.output_padding = per_dim(name, "output_padding", output_padding, n, 0)
        self.groups = groups
        self.padding_mode = padding_mode
        self._check(name)
        if is_lazy:
            self.weight = UninitializedParameter()
            self.register_parameter("bias", UninitializedParameter() if bias else None)
            return
        self.weight = Parameter.of_recipe(self._weight_shape(), self._bound())
        one = Parameter.of_recipe((self.out_channels,), self._bound()) if bias else None
        self.register_parameter("bias", one)

    def _check(self, name: str) -> None:
        for what, channels in (("in", self.in_channels), ("out", self.out_channels)):
            if channels % self.groups:
                raise ConfigError(
                    f"{name}: groups must divide {what}_channels={channels}, got {self.groups}"
                )
        if self.padding_mode not in _MODES or (self.is_transposed and self.padding_mode != "zeros"):
            modes = '"zeros"' if self.is_transposed else ", ".join(f'"{m}"' for m in _MODES)
            raise ConfigError(f"{name}: padding_mode must be {modes}, got {self.padding_mode!r}")
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid") or self.is_transposed:
                kinds = "numbers" if self.is_transposed else 'numbers, "same" or "valid"'
                raise ConfigError(f"{name}: padding must be {kinds}, got {self.padding!r}")
            if self.padding == "same" and max(self.stride) > 1:
                raise ConfigError(
                    f'{name}: padding "same" needs stride 1, got {self.stride}; write the padding '
                    "as numbers"
                )

    def _weight_shape(self) -> tuple[int, ...]:
        first, second = self.out_channels, self.in_channels
        if self.is_transposed:
            first, second = second, first
        return (first, second // self.groups, *self.kernel_size)

    def _bound(self) -> Uniform:
        fan_in = math.prod(self._weight_shape()[1:])
        bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
        return Uniform(-bound, bound)

    def reset_parameters(self) -> None:
        """torch's initial values again."""
        self.weight.set_recipe(self._bound())
        if self.bias is not None:
            self.bias.set_recipe(self._bound())

    def _pads(self) -> list[int]:
        """Elements before and after the last spatial dim, then the one before it, and so on."""
        if isinstance(self.padding, str):
            total = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
            pairs = [(t // 2, t - t // 2) if self.padding == "same" else (0, 0) for t in total]
        else:
            pairs = [(p, p) for p in self.padding]
        return [count for pair in reversed(pairs) for count in pair]

    def forward(self, input: Any) -> Any:
        conv: Callable[..., Any] = getattr(F, f"conv{self.n_dims}d")
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._pads(), _MODES[self.padding_mode])
            padding = 0
        return conv(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self.n_dims, (1,) * self.n_dims
        shown = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        for name, usual in (
            ("padding", zeros), ("dilation", ones), ("output_padding", zeros), ("groups", 1),
        ):  # fmt: skip
            if getattr(self, name) != usual:
                shown += f", {name}={getattr(self, name)}"
        if self.bias is None:
            shown += ", bias=False"
        return shown + (
            f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else ""
        )


class _ConvTranspose(_Conv):
    is_transposed = True

    def forward(self, input: Any, output_size: Any = None) -> Any:
        conv: Callable[..., Any] = getattr(F, f"conv_transpose{self.n_dims}d")
        output_padding = self.output_padding
        if output_size is not None:
            output_padding = self._find_output_padding(input.shape, output_size)
        return conv(
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups,
            self.dilation,
        )  # fmt: skip

    def _find_output_padding(self, shape: tuple[int, ...], output_size: Any) -> tuple[int, ...]:
        n = self.n_dims
        sizes = tuple(output_size)[-n:]
        assert not isinstance(self.padding, str)  # of a transposed one it is numbers
        lists = zip(shape[-n:], self.stride, self.padding, self.dilation, self.kernel_size)
        least = [(size - 1) * s - 2 * p + d * (k - 1) + 1 for size, s, p, d, k in lists]
        extra = tuple(size - low for size, low in zip(sizes, least))
        if len(sizes) != n or any(e < 0 or e >= s for e, s in zip(extra, self.stride)):
            most = [low + s - 1 for low, s in zip(least, self.stride)]
            raise ShapeError(
                f"output_size must lie between {least} and {most} for an input of shape "
                f"{tuple(shape)}, got {output_size}"
            )
        return extra


class _Lazy(_Conv):
    """Channels in are those of the first input."""

    def forward(self, input: Any, *args: Any) -> Any:
        if self.weight.is_lazy:
            if input.ndim not in (self.n_dims + 1, self.n_dims + 2):
                raise ShapeError(
                    f"the input must have {self.n_dims + 1} or {self.n_dims + 2} dims, got shape "
                    f"{tuple(input.shape)}"
                )
            self.in_channels = input.shape[-self.n_dims - 1]
            self._check(type(self).__name__)
            self.weight.resolve(self._weight_shape(), self._bound())
            if self.bias is not None:
                self.bias.resolve((self.out_channels,), self._bound())
        return super().forward(input, *args)

    def _get_name(self) -> str:
        name = type(self).__name__
        return name if self.weight.is_lazy else name.removeprefix("Lazy")

    def after_load(self) -> None:
        """Takes in_channels from a loaded weight."""
        if not self.weight.is_lazy:
            shape = self.weight.shape
            self.in_channels = shape[0] if self.is_transposed else shape[1] * self.groups


class Conv1d(_Conv):
    """Convolution (cross-correlation) over one spatial dim.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O.
    kernel_size : int
        Size of the kernel.
    stride : int
        Elements from one window to the next.
    padding : int, "same" or "valid"
        Elements added on both sides; "same": as many as keep the size, for stride 1.
    dilation : int
        Elements from one of the kernel's to the next.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    bias : bool
        Whether there is one.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        What is added.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(O, C / groups, K)``, uniform on ±1/√fan_in as torch's.
    bias : Parameter or None
        ``(O,)``, the same.

    Raises
    ------
    ConfigError
        For sizes out of range, groups that do not divide the channels, or a padding that is none.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; ``(N, O, L')`` out, sizes as of F.conv1d.
    """

    n_dims = 1

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads | str = 0,
        dilation: Sizes = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode,
        )  # fmt: skip


class Conv2d(_Conv):
    """Convolution (cross-correlation) over two spatial dims.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O.
    kernel_size : int or (int, int)
        Size of the kernel.
    stride : int or (int, int)
        Elements from one window to the next.
    padding : int or (int, int), "same" or "valid"
        Elements added on both sides; "same": as many as keep the size, for stride 1.
    dilation : int or (int, int)
        Elements from one of the kernel's to the next.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    bias : bool
        Whether there is one.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        What is added.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(O, C / groups, KH, KW)``, uniform on ±1/√fan_in as torch's.
    bias : Parameter or None
        ``(O,)``, the same.

    Raises
    ------
    ConfigError
        For sizes out of range, groups that do not divide the channels, or a padding that is none.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, O, H', W')`` out, sizes as of F.conv2d.
    """

    n_dims = 2

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads | str = 0,
        dilation: Sizes = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode,
        )  # fmt: skip


class Conv3d(_Conv):
    """Convolution (cross-correlation) over three spatial dims.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O.
    kernel_size : int or (int, int, int)
        Size of the kernel.
    stride : int or (int, int, int)
        Elements from one window to the next.
    padding : int or (int, int, int), "same" or "valid"
        Elements added on both sides; "same": as many as keep the size, for stride 1.
    dilation : int or (int, int, int)
        Elements from one of the kernel's to the next.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    bias : bool
        Whether there is one.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        What is added.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(O, C / groups, KD, KH, KW)``, uniform on ±1/√fan_in as torch's.
    bias : Parameter or None
        ``(O,)``, the same.

    Raises
    ------
    ConfigError
        For sizes out of range, groups that do not divide the channels, or a padding that is none.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, O, D', H', W')`` out, sizes as of F.conv3d.
    """

    n_dims = 3

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads | str = 0,
        dilation: Sizes = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode,
        )  # fmt: skip


class ConvTranspose1d(_ConvTranspose):
    """The gradient of Conv1d for its input as a layer: it makes sizes larger by the stride.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O.
    kernel_size : int
        Size of the kernel.
    stride : int
        Elements of the output from one of the input's to the next.
    padding : int
        Elements left out of the output on both sides.
    output_padding : int
        Elements more behind, less than stride or dilation.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    bias : bool
        Whether there is one.
    dilation : int
        Elements from one of the kernel's to the next.
    padding_mode : {"zeros"}
        As in torch, nothing else.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(C, O / groups, K)``, uniform on ±1/√fan_in as torch's.
    bias : Parameter or None
        ``(O,)``, the same.

    Raises
    ------
    ConfigError
        For sizes out of range, or groups that do not divide the channels.

    Notes
    -----
    ``(N, C, L)`` in, or one without N; ``(N, O, L')`` out, sizes as of F.conv_transpose1d. A call
    takes ``output_size``, of the sizes that the stride leaves open the wanted one.
    """

    n_dims = 1

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads = 0,
        output_padding: Pads = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, output_padding,
        )  # fmt: skip


class ConvTranspose2d(_ConvTranspose):
    """The gradient of Conv2d for its input as a layer: it makes sizes larger by the stride.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O.
    kernel_size : int or (int, int)
        Size of the kernel.
    stride : int or (int, int)
        Elements of the output from one of the input's to the next.
    padding : int or (int, int)
        Elements left out of the output on both sides.
    output_padding : int or (int, int)
        Elements more behind, less than stride or dilation.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    bias : bool
        Whether there is one.
    dilation : int or (int, int)
        Elements from one of the kernel's to the next.
    padding_mode : {"zeros"}
        As in torch, nothing else.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(C, O / groups, KH, KW)``, uniform on ±1/√fan_in as torch's.
    bias : Parameter or None
        ``(O,)``, the same.

    Raises
    ------
    ConfigError
        For sizes out of range, or groups that do not divide the channels.

    Notes
    -----
    ``(N, C, H, W)`` in, or one without N; ``(N, O, H', W')`` out, sizes as of
    F.conv_transpose2d. A call
    takes ``output_size``, of the sizes that the stride leaves open the wanted one.
    """

    n_dims = 2

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads = 0,
        output_padding: Pads = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, output_padding,
        )  # fmt: skip


class ConvTranspose3d(_ConvTranspose):
    """The gradient of Conv3d for its input as a layer: it makes sizes larger by the stride.

    Parameters
    ----------
    in_channels, out_channels : int
        C and O.
    kernel_size : int or (int, int, int)
        Size of the kernel.
    stride : int or (int, int, int)
        Elements of the output from one of the input's to the next.
    padding : int or (int, int, int)
        Elements left out of the output on both sides.
    output_padding : int or (int, int, int)
        Elements more behind, less than stride or dilation.
    groups : int
        Channels in and out are divided into so many, which do not mix.
    bias : bool
        Whether there is one.
    dilation : int or (int, int, int)
        Elements from one of the kernel's to the next.
    padding_mode : {"zeros"}
        As in torch, nothing else.
    device, dtype
        Taken for torch's sake.

    Attributes
    ----------
    weight : Parameter
        ``(C, O / groups, KD, KH, KW)``, uniform on ±1/√fan_in as torch's.
    bias : Parameter or None
        ``(O,)``, the same.

    Raises
    ------
    ConfigError
        For sizes out of range, or groups that do not divide the channels.

    Notes
    -----
    ``(N, C, D, H, W)`` in, or one without N; ``(N, O, D', H', W')`` out, sizes as of
    F.conv_transpose3d. A call
    takes ``output_size``, of the sizes that the stride leaves open the wanted one.
    """

    n_dims = 3

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads = 0,
        output_padding: Pads = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._set_up(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, output_padding,
        )  # fmt: skip


class LazyConv1d(_Lazy, Conv1d):
    """A Conv1d whose in_channels is that of its first input.

    Parameters
    ----------
    out_channels : int
        O.
    kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As of Conv1d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As Conv1d. Its parameters have their shapes after the first batch.
    """

    def __init__(
        self,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads | str = 0,
        dilation: Sizes = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        Module.__init__(self)
        self._set_up(
            0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            is_lazy=True,
        )  # fmt: skip


class LazyConv2d(_Lazy, Conv2d):
    """A Conv2d whose in_channels is that of its first input.

    Parameters
    ----------
    out_channels : int
        O.
    kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As of Conv2d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As Conv2d. Its parameters have their shapes after the first batch.
    """

    def __init__(
        self,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads | str = 0,
        dilation: Sizes = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        Module.__init__(self)
        self._set_up(
            0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            is_lazy=True,
        )  # fmt: skip


class LazyConv3d(_Lazy, Conv3d):
    """A Conv3d whose in_channels is that of its first input.

    Parameters
    ----------
    out_channels : int
        O.
    kernel_size, stride, padding, dilation, groups, bias, padding_mode
        As of Conv3d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As Conv3d. Its parameters have their shapes after the first batch.
    """

    def __init__(
        self,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads | str = 0,
        dilation: Sizes = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        Module.__init__(self)
        self._set_up(
            0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            is_lazy=True,
        )  # fmt: skip


class LazyConvTranspose1d(_Lazy, ConvTranspose1d):
    """A ConvTranspose1d whose in_channels is that of its first input.

    Parameters
    ----------
    out_channels : int
        O.
    kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode
        As of ConvTranspose1d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As ConvTranspose1d. Its parameters have their shapes after the first batch.
    """

    def __init__(
        self,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads = 0,
        output_padding: Pads = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        Module.__init__(self)
        self._set_up(
            0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            output_padding, is_lazy=True,
        )  # fmt: skip


class LazyConvTranspose2d(_Lazy, ConvTranspose2d):
    """A ConvTranspose2d whose in_channels is that of its first input.

    Parameters
    ----------
    out_channels : int
        O.
    kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode
        As of ConvTranspose2d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As ConvTranspose2d. Its parameters have their shapes after the first batch.
    """

    def __init__(
        self,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads = 0,
        output_padding: Pads = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        Module.__init__(self)
        self._set_up(
            0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            output_padding, is_lazy=True,
        )  # fmt: skip


class LazyConvTranspose3d(_Lazy, ConvTranspose3d):
    """A ConvTranspose3d whose in_channels is that of its first input.

    Parameters
    ----------
    out_channels : int
        O.
    kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode
        As of ConvTranspose3d.
    device, dtype
        Taken for torch's sake.

    Notes
    -----
    As ConvTranspose3d. Its parameters have their shapes after the first batch.
    """

    def __init__(
        self,
        out_channels: Size,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Pads = 0,
        output_padding: Pads = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        Module.__init__(self)
        self._set_up(
            0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode,
            output_padding, is_lazy=True,
        )  # fmt: skip
