"""Augmented images against Pillow and torchvision, by the parameters that were drawn."""

import itertools

import numpy as np
import pytest
from hotloop import _core
from hotloop.data import augment as ha
from needs import take_library
from vision import take_transforms

Image = take_library("PIL.Image")
ImageOps = take_library("PIL.ImageOps")

# Pillow rounds between its two passes and we do not; a level is rounded once more at the end.
RESIZE_LEVELS = 1
# Pillow cuts the warp's sums to whole levels, we round them.
WARP_LEVELS = 1

FILTERS = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (height, width, channels)).astype(np.uint8)


def photo(height: int = 60, width: int = 80) -> np.ndarray:
    """Smooth colours with edges and some noise; all hues, greys, black and white."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (4.0 + c) + c) * np.cos(y / (5.0 + c)) for c in range(3)]
    image = 127 + 120 * np.stack(waves, -1) + np.random.default_rng(1).normal(0, 6, (1, 1, 3))
    image[5:15, 5:25] = [255, 255, 255]
    image[20:30, 5:25] = [0, 0, 0]
    image[35:45, 5:25] = [90, 90, 90]
    return np.clip(image, 0, 255).astype(np.uint8)


def to_pil(image: np.ndarray) -> "Image.Image":
    return Image.fromarray(image if image.shape[2] == 3 else image[..., 0])


def run(image: np.ndarray, augment: object, size: object, row: int = 0, **options: object) -> tuple:
    """The image as (height, width, channels), and the matrix."""
    packed = ha.pack_augment(augment, size, **options)
    planes, _, _, _, matrix = _core.augment(image, packed, (0, row, True))
    return planes.transpose(1, 2, 0), matrix


def levels_apart(got: np.ndarray, want: object) -> int:
    want = np.asarray(want).reshape(got.shape)
    return int(np.abs(got.astype(int) - want.astype(int)).max())


# ---- sizes


def is_tie(source: int, output: int) -> bool:
    """Whether the centre of an output pixel falls between two pixels: either is the nearest."""
    centres = (np.arange(output) + 0.5) * source / output
    return bool((np.abs(centres - np.rint(centres)) < 1e-9).any())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", sorted(FILTERS))
def test_resizes_are_those_of_pillow(interpolation: str, channels: int) -> None:
    rng = np.random.default_rng(channels)
    for case in range(60):
        height, width, out_height, out_width = (int(n) for n in rng.integers(1, 90, 4))
        image = noise(height, width, channels, case)
        if interpolation == "bicubic":  # what overshoots between Pillow's passes is cut there
            image = image // 2 + 64
        if interpolation == "nearest" and (is_tie(height, out_height) or is_tie(width, out_width)):
            continue
        got, _ = run(
            image, "none", (out_height, out_width), fit="squash", interpolation=interpolation
        )
        want = to_pil(image).resize((out_width, out_height), FILTERS[interpolation])
        allowed = 0 if interpolation == "nearest" else RESIZE_LEVELS
        assert levels_apart(got, want) <= allowed, (height, width, out_height, out_width)


def test_random_resized_crops_are_resizes_of_a_box() -> None:
    image = noise(75, 100)
    for row in range(50):
        got, m = run(image, [ha.RandomResizedCrop()], (24, 32), row)
        box = (m[0, 2], m[1, 2], m[0, 2] + 32 * m[0, 0], m[1, 2] + 24 * m[1, 1])
        want = to_pil(image).resize((32, 24), Image.BILINEAR, box=tuple(np.rint(box)))
        assert np.allclose(box, np.rint(box), atol=1e-9)
        assert levels_apart(got, want) <= RESIZE_LEVELS


@pytest.mark.parametrize("shape", [(60, 80), (80, 60), (33, 33), (7, 90), (200, 31)])
def test_fits_are_those_of_pillow_and_torchvision(shape: tuple[int, int]) -> None:
    image = noise(*shape)
    pil = to_pil(image)
    got, _ = run(image, "none", (24, 36), fit="pad", fill=9)
    want = ImageOps.pad(pil, (36, 24), Image.BILINEAR, color=(9, 9, 9))
    assert levels_apart(got, want) <= RESIZE_LEVELS
    transforms = take_transforms()
    got, _ = run(image, "none", 24, fit="crop")
    want = transforms.CenterCrop(24)(transforms.Resize(24)(pil))
    assert levels_apart(got, want) <= RESIZE_LEVELS
    got, _ = run(image, [ha.Resize(40), ha.CenterCrop((30, 36))], (30, 36))
    want = transforms.CenterCrop((30, 36))(transforms.Resize(40)(pil))
    assert levels_apart(got, want) <= RESIZE_LEVELS


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("flip", [False, True])
def test_crops_with_padding_are_exact(mode: str, flip: bool) -> None:
    image = noise(20, 30)
    padding = (3, 5, 7, 2)  # left, top, right, bottom
    options = {"constant_values": 77} if mode == "constant" else {}
    padded = np.pad(image, ((5, 2), (3, 7), (0, 0)), mode=mode, **options)
    fill = 77 if mode == "constant" else None
    steps = [ha.RandomCrop((18, 26), padding, fill=fill, padding_mode=mode)]
    steps += [ha.RandomHorizontalFlip(1)] * flip
    places = set()
    for row in range(60):
        got, m = run(image, steps, (18, 26), row)
        left = int(m[0, 2]) - (26 if flip else 0) + 3
        top = int(m[1, 2]) + 5
        want = padded[top : top + 18, left : left + 26]
        assert np.array_equal(got, want[:, ::-1] if flip else want)
        places.add((top, left))
    assert len(places) > 40


# ---- warps


def places(matrix: np.ndarray, height: int, width: int) -> np.ndarray:
    """Where the centres of output pixels lie in the source: x and y."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    u, v, w = np.einsum("ij,jyx->iyx", matrix, np.stack([x, y, np.ones_like(x)]))
    return np.stack([u / w, v / w])


def is_at_border(matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Output pixels whose place is on the border of a source of the same size, but for rounding."""
    u, v = places(matrix, shape[0], shape[1])
    near = [abs(p - end) < 1e-6 for p, n in ((u, shape[1]), (v, shape[0])) for end in (0, n)]
    return np.logical_or.reduce(near)


def is_between(matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Output pixels whose place is between two pixels for Pillow, which counts in 1 / 65536 and
    adds an error of half of that with each pixel of a row."""
    at = places(matrix, shape[0], shape[1])
    return (abs(at - np.rint(at)) < 1e-6 + 2**-17 * max(shape)).any(0)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("degrees", "zoom", "shear"),
    [(30, 1, (0, 0)), (0, 1, (20, 0)), (15, 1.3, (-25, 35)), (-200, 0.9, (0, 10)), (88, 1, (0, 0))],
)
def test_affines_are_those_of_torchvision(
    degrees: float, zoom: float, shear: tuple[float, float], interpolation: str
) -> None:
    transforms = take_transforms()
    image = photo()
    shears = (shear[0], shear[0], shear[1], shear[1])
    step = ha.RandomAffine((degrees, degrees), None, (zoom, zoom), shears, fill=(9, 0, 200))
    got, m = run(image, [step], image.shape[:2], interpolation=interpolation)
    want = transforms.functional.affine(
        to_pil(image),
        angle=degrees,
        translate=[0, 0],
        scale=zoom,
        shear=list(shear),
        interpolation=transforms.InterpolationMode(interpolation),
        fill=[9, 0, 200],
    )
    ties = is_between if interpolation == "nearest" else is_at_border
    compared = ~ties(m, image.shape)
    assert compared.mean() > 0.9
    allowed = 0 if interpolation == "nearest" else WARP_LEVELS
    assert levels_apart(got[compared], np.asarray(want)[compared]) <= allowed


def test_rotations_turn_as_torchvision_s() -> None:
    functional = take_transforms().functional
    image = photo()
    for degrees in (10, -35, 135):
        got, m = run(image, [ha.RandomRotation((degrees, degrees))], image.shape[:2])
        want = functional.rotate(
            to_pil(image), degrees, interpolation=take_transforms().InterpolationMode.BILINEAR
        )
        compared = ~is_at_border(m, image.shape)
        assert levels_apart(got[compared], np.asarray(want)[compared]) <= WARP_LEVELS


def test_translations_are_whole_pixels() -> None:
    image = noise(30, 40)
    for row in range(20):
        got, m = run(image, [ha.RandomAffine(0, translate=(0.5, 0.2), fill=5)], (30, 40), row)
        dx, dy = -int(m[0, 2]), -int(m[1, 2])
        assert abs(dx) <= 20
        assert abs(dy) <= 6
        want = np.full((30 + 60, 40 + 80, 3), 5, np.uint8)
        want[30 + dy : 60 + dy, 40 + dx : 80 + dx] = image
        assert np.array_equal(got, want[30:60, 40:80])


def test_perspectives_are_those_of_pillow() -> None:
    image = photo()
    for row in range(20):
        got, m = run(image, [ha.RandomPerspective(0.6, p=1)], image.shape[:2], row)
        assert m[2, 2] == 1
        want = to_pil(image).transform(
            image.shape[1::-1], Image.PERSPECTIVE, m.reshape(9)[:8].tolist(), Image.BILINEAR
        )
        compared = ~is_at_border(m, image.shape)
        assert levels_apart(got[compared], np.asarray(want)[compared]) <= WARP_LEVELS


def test_corners_move_inwards() -> None:
    """Pillow's corners: the images of the old ones lie within half the distortion of them."""
    image = photo()
    height, width = image.shape[:2]
    old = np.array([[0, 0, 1], [width - 1, 0, 1], [width - 1, height - 1, 1], [0, height - 1, 1]])
    centre = np.array([width - 1, height - 1]) / 2
    seen = []
    for row in range(200):
        _, m = run(image, [ha.RandomPerspective(0.5, p=1)], (height, width), row)
        new = np.linalg.solve(m, old.T).T
        new = new[:, :2] / new[:, 2:]
        inwards = (old[:, :2] - new) * np.sign(old[:, :2] - centre)
        assert (inwards > -1e-6).all()
        assert (inwards <= [0.5 * (width // 2) + 1e-6, 0.5 * (height // 2) + 1e-6]).all()
        assert np.allclose(inwards, np.rint(inwards), atol=1e-6)
        seen.append(inwards)
    assert np.allclose(np.mean(seen, (0, 1)), [width / 8, height / 8], rtol=0.12)


@pytest.mark.parametrize("lines", ["across", "down", "both"])
def test_reductions_in_warps_do_not_alias(lines: str) -> None:
    """Fine lines turned and reduced are grey; the corners are the fill."""
    y, x = np.mgrid[0:400, 0:400]
    phase = {"across": y, "down": x, "both": x + y}[lines]
    board = np.repeat((phase % 2 * 255).astype(np.uint8)[..., None], 3, 2)
    got, _ = run(board, [ha.RandomRotation((30, 30))], 50)
    assert (np.abs(got[15:35, 15:35].astype(int) - 127) <= 3).all()
    assert (got[0, 0] == 0).all()


def test_reductions_in_warps_are_near_those_in_two_steps() -> None:
    y, x = np.mgrid[0:300, 0:400]
    smooth = 127 + 100 * np.stack([np.sin(x / 40), np.cos(y / 30), np.sin((x + y) / 50)], -1)
    smooth = smooth.astype(np.uint8)
    got, _ = run(smooth, [ha.RandomRotation((25, 25))], (60, 80))
    want = to_pil(smooth).resize((80, 60), Image.BILINEAR).rotate(25, Image.BILINEAR)
    inner = (slice(15, 45), slice(20, 60))
    # Two ways of smoothing a slope of at most 3.3 levels a pixel, half a pixel of the reduced
    # image apart at most.
    assert levels_apart(got[inner], np.asarray(want)[inner]) <= 0.5 * 5 * 3.3


# ---- colours


def jitter(**factors: float) -> list:
    return [ha.ColorJitter(**{name: (factor, factor) for name, factor in factors.items()})]


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.999, 1.4, 2.5])
@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation"])
def test_enhancements_are_those_of_pillow(what: str, factor: float) -> None:
    functional = take_transforms().functional
    image = photo()
    got, _ = run(image, jitter(**{what: factor}), image.shape[:2])
    want = getattr(functional, f"adjust_{what}")(to_pil(image), factor)
    assert levels_apart(got, want) == 0


@pytest.mark.parametrize("turn", [-0.5, -0.1, 0.02, 0.25, 0.5])
def test_hues_are_those_of_torchvision(turn: float) -> None:
    functional = take_transforms().functional
    image = photo()
    got, _ = run(image, jitter(hue=turn), image.shape[:2])
    want = np.asarray(functional.adjust_hue(to_pil(image), turn))
    assert levels_apart(got, want) == 0


def test_greys_are_those_of_pillow() -> None:
    image = photo()
    got, _ = run(image, [ha.RandomGrayscale(1)], image.shape[:2])
    assert (
        levels_apart(got, np.repeat(np.asarray(to_pil(image).convert("L"))[..., None], 3, 2)) == 0
    )


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.5), ((5, 9), 2.0), (1, 1.0), (23, 8.0)])
def test_blurs_are_those_of_torchvision(size: object, sigma: float) -> None:
    functional = take_transforms().functional
    torch = take_library("torch")
    image = photo()
    got, _ = run(image, [ha.GaussianBlur(size, (sigma, sigma))], image.shape[:2])
    kernel = [size, size] if isinstance(size, int) else list(size)
    tensor = torch.from_numpy(image.transpose(2, 0, 1).copy())
    want = functional.gaussian_blur(tensor, kernel, [sigma, sigma]).numpy()
    # Both round the same sum of floats.
    assert levels_apart(got, want.transpose(1, 2, 0)) <= 1


def test_jitter_is_done_in_some_order() -> None:
    """One of the 24 orders each time, and most of them are seen."""
    functional = take_transforms().functional
    image = photo(20, 30)
    factors = {"brightness": 1.4, "contrast": 0.5, "saturation": 1.7, "hue": 0.1}
    made = {}
    for order in itertools.permutations(factors):
        pil = to_pil(image)
        for name in order:
            pil = getattr(functional, f"adjust_{name}")(pil, factors[name])
        made[order] = np.asarray(pil)
    seen = set()
    for row in range(200):
        got, _ = run(image, jitter(**factors), (20, 30), row)
        matching = [order for order, want in made.items() if levels_apart(got, want) == 0]
        assert matching
        seen.update(matching)
    assert len(seen) == 24


# ---- automatic operations


def apply_automatically(pil: object, name: str, magnitude: float) -> np.ndarray:
    """torchvision's own, on Pillow's image."""
    auto = take_transforms()
    mode = auto.InterpolationMode.BILINEAR
    step = auto.TrivialAugmentWide(interpolation=mode)
    made = step._apply_image_or_video_transform(pil, name, magnitude, mode, step._fill)
    return np.asarray(made)


def space_of(kind: type, height: int, width: int, bins: int, bin_number: int | None) -> list:
    """(operation, magnitude) of everything that may be drawn."""
    found = []
    for name, (magnitudes, signed) in kind._AUGMENTATION_SPACE.items():
        values = magnitudes(bins, height, width)
        if values is None:
            found.append((name, 0.0))
            continue
        values = values.tolist() if bin_number is None else [float(values[bin_number])]
        found += [(name, sign * v) for v in values for sign in ((1, -1) if signed else (1,))]
    return found


@pytest.mark.parametrize("kind", ["TrivialAugmentWide", "RandAugment"])
def test_automatic_operations_are_those_of_torchvision(kind: str) -> None:
    """What is made is what torchvision makes of one of its operations, and all of them come."""
    transforms = take_transforms()
    image = photo(50, 66) // 2 + 40  # so that more contrast is another image
    bins, bin_number = (3, None) if kind == "TrivialAugmentWide" else (31, 20)
    step = (
        ha.TrivialAugmentWide(bins) if bin_number is None else ha.RandAugment(1, bin_number, bins)
    )
    space = space_of(getattr(transforms, kind), 50, 66, bins, bin_number)
    names = np.array([name for name, _ in space])
    made = np.stack([apply_automatically(to_pil(image), *drawn) for drawn in space])
    made = made.transpose(0, 3, 1, 2).astype(np.int16)  # channels first, which is quicker
    counts = dict.fromkeys(names.tolist(), 0)
    n = 560
    for row in range(n):
        got, m = run(image, [step], (50, 66), row)
        apart = np.abs(made - got.transpose(2, 0, 1)).max(1)
        apart[:, is_at_border(m, image.shape)] = 0
        matching = set(names[apart.max((1, 2)) <= WARP_LEVELS])
        assert matching, row
        if len(matching) == 1:
            counts[matching.pop()] += 1
        else:  # a magnitude of 0: one of those that do nothing
            assert levels_apart(got, image) <= WARP_LEVELS
            counts["Identity"] += 1
    assert len(counts) == 14
    share = n / 14
    for name, count in counts.items():
        if name != "Identity":
            assert 0.35 * share < count < 1.6 * share, (name, count)


# ---- erasing and noise


def test_erased_rectangles_have_the_drawn_sizes() -> None:
    image = np.zeros((100, 120, 3), np.uint8)
    steps = [ha.RandomErasing(1, (0.05, 0.3), (0.5, 2), (10, 20, 30))]
    areas, ratios, tops = [], [], []
    for row in range(400):
        got, _ = run(image, steps, (100, 120), row)
        y, x = np.nonzero(got[..., 0])
        height, width = np.ptp(y) + 1, np.ptp(x) + 1
        assert height * width == len(y)
        assert (got[y, x] == [10, 20, 30]).all()
        areas.append(height * width / 12000)
        ratios.append(height / width)
        tops.append(y.min() / (100 - height))
    slack = 0.01  # sides are whole pixels
    assert 0.05 - slack < min(areas) < 0.07
    assert 0.28 < max(areas) < 0.3 + slack
    assert 0.49 < min(ratios) < 0.55
    assert 1.8 < max(ratios) < 2.1
    # Means of uniform numbers of n draws: five standard deviations.
    assert abs(np.mean(areas) - 0.175) < 5 * 0.25 / np.sqrt(12 * 400)
    assert abs(np.mean(np.log(ratios))) < 5 * np.log(4) / np.sqrt(12 * 400)
    assert abs(np.mean(tops) - 0.5) < 5 / np.sqrt(12 * 400)


def test_random_erasing_fills_with_random_levels() -> None:
    image = np.zeros((100, 100, 3), np.uint8)
    got, _ = run(image, [ha.RandomErasing(1, (0.3, 0.3), (1, 1), "random")], 100)
    levels = got[got.any(-1)]
    assert len(levels) > 2500
    assert abs(levels.mean() - 127.5) < 5 * 74 / np.sqrt(levels.size)
    assert (np.bincount(levels.reshape(-1), minlength=256) > 0).all()


def test_noise_is_normal() -> None:
    image = np.full((200, 300, 3), 128, np.uint8)
    got, _ = run(image, [ha.GaussianNoise(0.1, 0.1)], (200, 300))
    off = got.astype(float) - 128
    n = off.size
    # Whole levels towards 0, as in torchvision: half a level less where it is positive.
    assert abs(off.mean() - (25.5 - 0.5 * 0.68)) < 0.2 + 5 * 25.5 / np.sqrt(n)
    assert abs(off.std() - 25.5) < 0.3
    for sigmas, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        within = np.abs(off - 25.5 + 0.34) < sigmas * 25.5
        assert abs(within.mean() - share) < 0.01
    a, b = off[..., 0].reshape(-1), off[..., 1].reshape(-1)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_grey_images_and_alphas(channels: int) -> None:
    """A grey image has no hue; an alpha follows the geometry and keeps its values."""
    image = noise(20, 24, channels)
    steps = [
        ha.ColorJitter((1.5, 1.5), (0.5, 0.5), (0.0, 0.0), (0.3, 0.3)),
        ha.RandomGrayscale(1),
        ha.RandAugment(3),
    ]
    flip = ha.RandomHorizontalFlip(1)
    n_flat = 0
    for row in range(40):
        got, m = run(image, [flip, *steps], (20, 24), row)
        assert got.shape == (20, 24, channels)
        if channels > 1 and np.array_equal(m, [[-1, 0, 24], [0, 1, 0], [0, 0, 1]]):
            assert np.array_equal(got[..., -1], image[:, ::-1, -1])
            assert not np.array_equal(got[..., 0], image[:, ::-1, 0])
            n_flat += 1
    assert channels == 1 or n_flat > 3
