"""Descriptions of what happens to images before they are a batch: torchvision's transforms by name.

Nothing here touches a pixel. A description packs itself into what the core's augmentation takes
(csrc/data/augment.h), which does it on the threads that load the data, from random numbers that are
a function of seed, epoch and row. Names, arguments and defaults are those of
``torchvision.transforms.v2``, where they mean something here: an image is resampled once, so
``interpolation`` and ``fill`` belong to the whole list, and steps that state them must agree.

All geometric steps happen first, in their order, then the colours in theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotloop.base import rules
from hotloop.base.rules import reject
from hotloop.base.scalars import plain
from hotloop.data.augment_series import Jitter, Scaling, TimeMask
from hotloop.errors import ConfigError

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "GaussianBlur",
    "GaussianNoise",
    "Jitter",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomPerspective",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomVerticalFlip",
    "Resize",
    "Scaling",
    "TimeMask",
    "TrivialAugmentWide",
    "pack_augment",
    "read_augment",
]

Packed = tuple[str, float, tuple[float, ...]]  # kind, probability, numbers: hl_augment_step
Pair = tuple[float, float]

_FITS = {"squash": 0, "crop": 1, "pad": 2}  # hl_fit
_FILTERS = {"nearest": 0, "bilinear": 1, "bicubic": 2}  # hl_filter
_BORDERS = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}  # hl_border
_LARGEST = 16384  # HL_AUGMENT_SIZE_MAX
_SMALL = 64  # pixels: "basic" moves images up to this size and cuts larger ones
_share = rules.number(at_least=0, at_most=1)


# ---- what arguments mean


def _name(step: object) -> str:
    return type(step).__name__


def _size(field: str, value: object) -> tuple[int, int]:
    """A side or (height, width)."""
    side = rules.whole(1, _LARGEST)
    value = plain(value)
    if isinstance(value, (list, tuple)):
        if len(value) == 1:
            value = [value[0]] * 2
        if len(value) != 2:
            reject(field, "must be a number of pixels or (height, width)", value)
        return side(field, value[0]), side(field, value[1])
    n = side(field, value)
    return n, n


def _range(field: str, value: object, low: float, high: float) -> Pair:
    """(least, most) within bounds."""
    check = rules.number(at_least=low, at_most=high)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        reject(field, "must be (least, most)", value)
    least, most = (check(field, x) for x in value)
    if least > most:
        reject(field, "must be (least, most)", value)
    return least, most


def _around(field: str, value: object, centre: float, low: float, high: float) -> Pair:
    """A distance to both sides of the centre, or (least, most)."""
    if isinstance(value, (list, tuple)):
        return _range(field, value, low, high)
    distance = rules.number(at_least=0)(field, value)
    return max(centre - distance, low), min(centre + distance, high)


def _fill(field: str, value: object) -> tuple[int, ...] | None:
    """Levels by channel; None: not stated."""
    if value is None:
        return None
    level = rules.whole(0, 255)
    value = plain(value)
    if isinstance(value, (list, tuple)):
        if not 1 <= len(value) <= 4:
            reject(field, "must be a level or one for each channel", value)
        return tuple(level(field, x) for x in value)
    return (level(field, value),)


def _interpolation(field: str, value: object) -> str | None:
    """A filter's name, also of an enumeration whose values are names; None: not stated."""
    if value is None:
        return None
    return str(rules.choice(*_FILTERS)(field, getattr(value, "value", value)))


def _padding(field: str, value: object) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of one, two or four numbers, as in torchvision."""
    side = rules.whole(0, _LARGEST)
    value = plain(value)
    if value is None:
        return 0, 0, 0, 0
    if not isinstance(value, (list, tuple)):
        n = side(field, value)
        return n, n, n, n
    if len(value) not in (1, 2, 4):
        reject(field, "must be one, two or four numbers of pixels", value)
    sides = [side(field, x) for x in value]
    left, top, right, bottom = (sides * 4)[:4] if len(sides) < 4 else sides
    return left, top, right, bottom


# ---- steps


class Step:
    """What all steps have: the filter and the fill they state, and how they are packed."""

    _kind = ""  # hl_augment_kind's name
    _p = 1.0
    _is_sized = False  # its numbers begin with _size, or the output's
    _size: tuple[int, int] | None = None
    _numbers: tuple[float, ...] = ()  # of hl_augment_step
    interpolation: str | None = None
    fill: tuple[int, ...] | None = None

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return f"{_name(self)}({self._shown})"

    def pack(self, height: int, width: int) -> Packed:
        """The step for outputs of this size."""
        size = (self._size or (height, width)) if self._is_sized else ()
        return self._kind, self._p, (*size, *self._numbers)


class Resize(Step):
    """Another size, for training and prediction.

    Parameters
    ----------
    size : int or (int, int)
        Pixels of the shorter side, the other one in proportion; or height and width.
    interpolation : {"bilinear", "bicubic", "nearest"}, optional
        Of the whole list; "bilinear" where no step says so. Reductions are smoothed.

    Raises
    ------
    ConfigError
        For sizes that are not from 1 to 16384.

    Examples
    --------
    >>> augment = [hl.augment.Resize(256), hl.augment.CenterCrop(224)]
    """

    _kind = "resize"

    def __init__(self, size: int | Sequence[int], interpolation: str | None = None) -> None:
        super().__init__(f"{size!r}")
        height, width = _size("Resize: size", size)
        self._numbers = (height, width if isinstance(plain(size), (list, tuple)) else 0)
        self.interpolation = _interpolation("Resize: interpolation", interpolation)


class CenterCrop(Step):
    """The centre, for training and prediction; around a smaller image lies the fill.

    Parameters
    ----------
    size : int or (int, int)
        Side of a square, or height and width, in pixels.

    Raises
    ------
    ConfigError
        For sizes that are not from 1 to 16384.

    Examples
    --------
    >>> augment = [hl.augment.CenterCrop((200, 300)), hl.augment.RandomHorizontalFlip()]
    """

    _kind = "center_crop"

    def __init__(self, size: int | Sequence[int]) -> None:
        super().__init__(f"{size!r}")
        self._numbers = _size("CenterCrop: size", size)


class RandomCrop(Step):
    """A part of this size anywhere in the image; outside of training, its centre.

    Parameters
    ----------
    size : int or (int, int), optional
        Side of a square, or height and width, in pixels; None: the size of the batch's images.
    padding : int or sequence of int, optional
        Pixels added to all sides, to (left and right, top and bottom), or left, top, right, bottom.
    pad_if_needed : bool
        Whether smaller images are padded; else they are a DataError.
    fill : int or sequence of int, optional
        Levels 0 to 255 of padding, also by channel; of the whole list, 0 where no step says so.
    padding_mode : {"constant", "edge", "reflect", "symmetric"}
        What is in the padding.

    Raises
    ------
    ConfigError
        For a size, padding or mode that there is not.

    Examples
    --------
    >>> augment = [hl.augment.RandomCrop(32, padding=4, padding_mode="reflect")]
    """

    _kind = "random_crop"
    _is_sized = True

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: int | Sequence[int] | None = None,
        padding_mode: str = "constant",
    ) -> None:
        super().__init__(f"{size!r}, padding={padding!r}")
        self._size = None if size is None else _size("RandomCrop: size", size)
        sides = _padding("RandomCrop: padding", padding)
        pads = rules.flag("RandomCrop: pad_if_needed", pad_if_needed)
        mode = rules.choice(*_BORDERS)("RandomCrop: padding_mode", padding_mode)
        self._numbers = (*sides, float(pads), _BORDERS[mode])
        self.fill = _fill("RandomCrop: fill", fill)


class RandomResizedCrop(Step):
    """A part of random area and shape, resized (Szegedy et al., 2015, arXiv:1409.4842).

    Parameters
    ----------
    size : int or (int, int), optional
        Side of a square, or height and width, in pixels; None: the size of the batch's images.
    scale : (float, float)
        Share of the image's area, least and most.
    ratio : (float, float)
        Width divided by height of the part, least and most.
    interpolation : {"bilinear", "bicubic", "nearest"}, optional
        Of the whole list; "bilinear" where no step says so. Reductions are smoothed.

    Raises
    ------
    ConfigError
        For a size or range that there is not.

    Examples
    --------
    >>> augment = [hl.augment.RandomResizedCrop(scale=(0.35, 1.0))]
    """

    _kind = "random_resized_crop"
    _is_sized = True

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str | None = None,
    ) -> None:
        super().__init__(f"{size!r}, scale={scale!r}")
        self._size = None if size is None else _size("RandomResizedCrop: size", size)
        share = _range("RandomResizedCrop: scale", scale, 1e-6, 1)
        self._numbers = (*share, *_range("RandomResizedCrop: ratio", ratio, 1e-3, 1e3))
        self.interpolation = _interpolation("RandomResizedCrop: interpolation", interpolation)


class RandomHorizontalFlip(Step):
    """Left and right change places.

    Parameters
    ----------
    p : float
        How often, 0 to 1.

    Raises
    ------
    ConfigError
        If p is no probability.

    Examples
    --------
    >>> augment = [hl.augment.RandomHorizontalFlip()]
    """

    _kind = "random_horizontal_flip"

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(f"p={p!r}")
        self._p = _share("RandomHorizontalFlip: p", p)


class RandomVerticalFlip(Step):
    """Top and bottom change places.

    Parameters
    ----------
    p : float
        How often, 0 to 1.

    Raises
    ------
    ConfigError
        If p is no probability.

    Examples
    --------
    >>> augment = [hl.augment.RandomVerticalFlip(p=0.2)]
    """

    _kind = "random_vertical_flip"

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(f"p={p!r}")
        self._p = _share("RandomVerticalFlip: p", p)


class RandomAffine(Step):
    """A turn, shift, scaling and shear about the image's centre.

    Parameters
    ----------
    degrees : float or (float, float)
        Clockwise turn: up to this in either direction, or least and most.
    translate : (float, float), optional
        Shift across and down in either direction, at most, as shares of width and height.
    scale : (float, float), optional
        Least and most, 1 being the size as it is.
    shear : float or sequence of float, optional
        Degrees across, up to this in either direction, or least and most; of four numbers the
        last two are those of a shear down.
    fill : int or sequence of int, optional
        Levels 0 to 255 beyond the image, also by channel; of the whole list, 0 where no step says
        so.

    Raises
    ------
    ConfigError
        For a range that there is not.

    Examples
    --------
    >>> augment = [hl.augment.RandomAffine(10, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5)]
    """

    _kind = "random_affine"

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        fill: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__(f"{degrees!r}, translate={translate!r}, scale={scale!r}, shear={shear!r}")
        turn = _around("RandomAffine: degrees", degrees, 0, -36000, 36000)
        shift: tuple[float, ...] = (0.0, 0.0)
        if translate is not None:
            if not isinstance(translate, (list, tuple)) or len(translate) != 2:
                reject("RandomAffine: translate", "must be (across, down)", translate)
            shift = tuple(_share("RandomAffine: translate", x) for x in translate)
        zoom = (1.0, 1.0) if scale is None else _range("RandomAffine: scale", scale, 0.01, 100)
        shears = _shears("RandomAffine: shear", shear)
        self._numbers = (*turn, *shift, *zoom, *shears)
        self.fill = _fill("RandomAffine: fill", fill)


def _shears(field: str, value: object) -> tuple[float, ...]:
    """Least and most across, least and most down."""
    if value is None:
        return 0.0, 0.0, 0.0, 0.0
    if isinstance(value, (list, tuple)) and len(value) == 4:
        return *_range(field, value[:2], -85, 85), *_range(field, value[2:], -85, 85)
    return *_around(field, value, 0, -85, 85), 0.0, 0.0


class RandomRotation(Step):
    """A turn about the image's centre.

    Parameters
    ----------
    degrees : float or (float, float)
        Anticlockwise: up to this in either direction, or least and most.
    fill : int or sequence of int, optional
        Levels 0 to 255 beyond the image, also by channel; of the whole list, 0 where no step says
        so.

    Raises
    ------
    ConfigError
        For a range that there is not.

    Examples
    --------
    >>> augment = [hl.augment.RandomRotation(15, fill=(124, 116, 104))]
    """

    _kind = "random_affine"

    def __init__(
        self, degrees: float | Sequence[float], fill: int | Sequence[int] | None = None
    ) -> None:
        super().__init__(f"{degrees!r}")
        least, most = _around("RandomRotation: degrees", degrees, 0, -36000, 36000)
        self._numbers = (-most, -least, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
        self.fill = _fill("RandomRotation: fill", fill)


class RandomPerspective(Step):
    """Each corner moves inwards.

    Parameters
    ----------
    distortion_scale : float
        How far at most, as a share of half the image, 0 to 1.
    p : float
        How often, 0 to 1.
    fill : int or sequence of int, optional
        Levels 0 to 255 beyond the image, also by channel; of the whole list, 0 where no step says
        so.

    Raises
    ------
    ConfigError
        If one of them is not from 0 to 1.

    Examples
    --------
    >>> augment = [hl.augment.RandomPerspective(0.3)]
    """

    _kind = "random_perspective"

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        fill: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__(f"{distortion_scale!r}, p={p!r}")
        self._numbers = (_share("RandomPerspective: distortion_scale", distortion_scale),)
        self._p = _share("RandomPerspective: p", p)
        self.fill = _fill("RandomPerspective: fill", fill)


class ColorJitter(Step):
    """Other brightness, contrast, saturation and hue, in random order.

    Parameters
    ----------
    brightness, contrast, saturation : float or (float, float), optional
        Factors: up to this away from 1, or least and most, 0 or more.
    hue : float or (float, float), optional
        Turns of the colour circle: up to this in either direction, or least and most, -0.5 to 0.5.

    Raises
    ------
    ConfigError
        For a range that there is not.

    Examples
    --------
    >>> augment = [hl.augment.ColorJitter(0.4, 0.4, saturation=(0.5, 1.5), hue=0.1)]
    """

    _kind = "color_jitter"

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(f"{brightness!r}, {contrast!r}, {saturation!r}, {hue!r}")
        factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
        numbers: list[float] = []
        for name, value in factors.items():
            value = 0 if value is None else value
            numbers += _around(f"ColorJitter: {name}", value, 1, 0, 1000)
        hue = 0 if hue is None else hue
        if not isinstance(hue, (list, tuple)):
            rules.number(at_least=0, at_most=0.5)("ColorJitter: hue", hue)
        self._numbers = (*numbers, *_around("ColorJitter: hue", hue, 0, -0.5, 0.5))


class RandomGrayscale(Step):
    """Grey, in as many channels.

    Parameters
    ----------
    p : float
        How often, 0 to 1.

    Raises
    ------
    ConfigError
        If p is no probability.

    Examples
    --------
    >>> augment = [hl.augment.RandomGrayscale()]
    """

    _kind = "random_grayscale"

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(f"p={p!r}")
        self._p = _share("RandomGrayscale: p", p)


class GaussianBlur(Step):
    """A blur.

    Parameters
    ----------
    kernel_size : int or (int, int)
        Pixels, odd; or across and down.
    sigma : float or (float, float)
        Standard deviation in pixels, or least and most.

    Raises
    ------
    ConfigError
        For an even size, or a range that there is not.

    Examples
    --------
    >>> augment = [hl.augment.GaussianBlur(23, sigma=(0.1, 2.0))]
    """

    _kind = "gaussian_blur"

    def __init__(
        self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)
    ) -> None:
        super().__init__(f"{kernel_size!r}, sigma={sigma!r}")
        across, down = _size("GaussianBlur: kernel_size", kernel_size)
        if across % 2 == 0 or down % 2 == 0 or max(across, down) > 1023:
            reject("GaussianBlur: kernel_size", "must be odd and at most 1023", kernel_size)
        bounds = sigma if isinstance(sigma, (list, tuple)) else (sigma, sigma)
        self._numbers = (across, down, *_range("GaussianBlur: sigma", bounds, 1e-3, 1e3))


class GaussianNoise(Step):
    """Normal noise on every level, cut to 0 to 255.

    Parameters
    ----------
    mean, sigma : float
        Of the noise, white being 1.

    Raises
    ------
    ConfigError
        If the mean is not from -1 to 1, or sigma not from 0 to 10.

    Examples
    --------
    >>> augment = [hl.augment.GaussianNoise(sigma=0.02)]
    """

    _kind = "gaussian_noise"

    def __init__(self, mean: float = 0.0, sigma: float = 0.1) -> None:
        super().__init__(f"{mean!r}, {sigma!r}")
        self._numbers = (
            rules.number(at_least=-1, at_most=1)("GaussianNoise: mean", mean),
            rules.number(at_least=0, at_most=10)("GaussianNoise: sigma", sigma),
        )


class RandomErasing(Step):
    """A rectangle loses its content (Zhong et al., 2017, arXiv:1708.04896). Masks keep theirs.

    Parameters
    ----------
    p : float
        How often, 0 to 1.
    scale : (float, float)
        Share of the image's area, least and most.
    ratio : (float, float)
        Height divided by width, least and most.
    value : int, sequence of int, or "random"
        Levels 0 to 255 of the rectangle, also by channel, before the images are normalised; or
        random ones for each pixel.

    Raises
    ------
    ConfigError
        For a probability, range or value that there is not.

    Examples
    --------
    >>> augment = [hl.augment.RandomErasing(p=0.25, value="random")]
    """

    _kind = "random_erasing"

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: int | Sequence[int] | str = 0,
    ) -> None:
        super().__init__(f"p={p!r}, scale={scale!r}, value={value!r}")
        self._p = _share("RandomErasing: p", p)
        levels = (0,) if value == "random" else _fill("RandomErasing: value", value) or (0,)
        self._numbers = (
            *_range("RandomErasing: scale", scale, 0, 1),
            *_range("RandomErasing: ratio", ratio, 1e-3, 1e3),
            float(value == "random"),
            *(levels + levels[-1:] * 3)[:4],
        )


class TrivialAugmentWide(Step):
    """One operation of random strength (Mueller and Hutter, 2021, arXiv:2103.10158).

    Parameters
    ----------
    num_magnitude_bins : int
        How many strengths there are.

    Raises
    ------
    ConfigError
        If that is not from 2 to 1000.

    Examples
    --------
    >>> augment = [hl.augment.RandomResizedCrop(), hl.augment.TrivialAugmentWide()]
    """

    _kind = "trivial_augment_wide"

    def __init__(self, num_magnitude_bins: int = 31) -> None:
        super().__init__(f"{num_magnitude_bins!r}")
        rule = rules.whole(2, 1000)
        self._numbers = (rule("TrivialAugmentWide: num_magnitude_bins", num_magnitude_bins),)


class RandAugment(Step):
    """Some operations, one after the other (Cubuk et al., 2019, arXiv:1909.13719).

    Parameters
    ----------
    num_ops : int
        How many.
    magnitude : int
        Their strength, below the number of strengths.
    num_magnitude_bins : int
        How many strengths there are.

    Raises
    ------
    ConfigError
        For a number that there is not.

    Examples
    --------
    >>> augment = [hl.augment.RandAugment(num_ops=2, magnitude=9)]
    """

    _kind = "rand_augment"

    def __init__(self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31) -> None:
        super().__init__(f"{num_ops!r}, {magnitude!r}, {num_magnitude_bins!r}")
        bins = rules.whole(2, 1000)("RandAugment: num_magnitude_bins", num_magnitude_bins)
        self._numbers = (
            rules.whole(0, 100)("RandAugment: num_ops", num_ops),
            rules.whole(0, bins - 1)("RandAugment: magnitude", magnitude),
            bins,
        )


class _Fit(Step):
    """The output's size, as the images' fit says: before a crop of that size."""

    _kind = "fit"

    def __init__(self) -> None:
        super().__init__("")


# ---- lists of steps


def _basic(height: int, width: int) -> list[Step]:
    if max(height, width) <= _SMALL:
        return [_Fit(), RandomCrop(padding=4), RandomHorizontalFlip()]
    return [RandomResizedCrop(scale=(0.35, 1.0)), RandomHorizontalFlip()]


def read_augment(value: object, height: int, width: int) -> list[Step]:
    """The steps that ``augment=`` means.

    Parameters
    ----------
    value : str, step, list of steps, or None
        "none" (or None); "basic": for images of at most 64 pixels a crop after 4 pixels of padding,
        for larger ones RandomResizedCrop of 35 to 100 % of the area, and horizontal flips;
        "strong": basic, then TrivialAugmentWide and RandomErasing of every fourth image.
    height, width : int
        Pixels of the batch's images.

    Returns
    -------
    list of steps

    Raises
    ------
    ConfigError
        For another word, or what is no step.
    """
    if value is None or (isinstance(value, str) and value == "none"):
        return []
    if isinstance(value, str):
        name = rules.choice("none", "basic", "strong")("augment", value)
        basic = _basic(height, width)
        return basic if name == "basic" else [*basic, TrivialAugmentWide(), RandomErasing(p=0.25)]
    if isinstance(value, Step):
        return [value]
    if not isinstance(value, (list, tuple)):
        reject("augment", "must be 'none', 'basic', 'strong' or a list of steps", value)
    for i, step in enumerate(value):
        if not isinstance(step, Step):
            known = _name(step) in __all__
            fix = f"write hl.augment.{_name(step)}, with the same arguments"
            reject(f"augment[{i}]", "must be a step of hl.augment", step, fix * known)
    return list(value)


def _agree(what: str, stated: list[Any], steps: Sequence[Step], default: Any) -> Any:
    """The one value that steps state, or the default."""
    found = default
    by: Step | None = None
    for step, value in zip(steps, stated, strict=True):
        if value is None:
            continue
        if by is not None and value != found:
            raise ConfigError(
                f"augment: an image is resampled once, so {what} must be the same in all steps, "
                f"got {found!r} of {by!r} and {value!r} of {step!r}"
            )
        found, by = value, step
    return found


def pack_augment(
    value: object,
    size: int | Sequence[int],
    *,
    seed: int = 0,
    fit: str = "crop",
    interpolation: str | None = None,
    fill: int | Sequence[int] | None = None,
) -> tuple[Any, ...]:
    """What the core takes for ``augment=`` and the size of images.

    Parameters
    ----------
    value : str, step, list of steps, or None
        As :func:`read_augment` reads it.
    size : int or (int, int)
        Side of a square, or height and width of the batch's images, in pixels.
    seed : int
        Of what is drawn.
    fit : {"crop", "squash", "pad"}
        How an image gets that size where no step gives it one, and when nothing is drawn: the
        shorter side is resized and the centre cut out, each side for itself, or the image lies in
        the middle of the fill.
    interpolation : {"bilinear", "bicubic", "nearest"}, optional
        Where no step states one; "bilinear" by default.
    fill : int or sequence of int, optional
        Levels beyond the image where no step states them; 0 by default.

    Returns
    -------
    tuple
        Height, width, fit, filter, fill, seed, steps.

    Raises
    ------
    ConfigError
        For an argument that there is not, and for steps that state different filters or fills.
    """
    height, width = _size("size", size)
    steps = read_augment(value, height, width)
    chosen = _interpolation("interpolation", interpolation) or "bilinear"
    chosen = _agree("interpolation", [step.interpolation for step in steps], steps, chosen)
    levels = _fill("fill", fill) or (0,)
    levels = _agree("fill", [step.fill for step in steps], steps, levels)
    return (
        height,
        width,
        _FITS[rules.choice(*_FITS)("fit", fit)],
        _FILTERS[chosen],
        levels,
        seed,
        tuple(step.pack(height, width) for step in steps),
    )
