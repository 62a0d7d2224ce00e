"""Augmentation: what is drawn, and of what; masks, keypoints, predictions, wrong arguments."""

import concurrent.futures
import itertools

import numpy as np
import pytest
from hotloop import _core
from hotloop.data import augment as ha
from hotloop.errors import ConfigError, DataError, ShapeError

EVERYTHING = [
    ha.RandomResizedCrop(),
    ha.RandomHorizontalFlip(),
    ha.RandomVerticalFlip(),
    ha.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10),
    ha.RandomPerspective(0.4),
    ha.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ha.RandomGrayscale(),
    ha.TrivialAugmentWide(),
    ha.RandAugment(),
    ha.GaussianBlur(3),
    ha.GaussianNoise(),
    ha.RandomErasing(value="random"),
]


def noise(height: int = 40, width: int = 52, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (height, width, channels)).astype(np.uint8)


def run(
    image: np.ndarray,
    augment: object,
    size: object,
    row: int = 0,
    *,
    epoch: int = 0,
    training: bool = True,
    **options: object,
) -> np.ndarray:
    """Planes (channels, height, width)."""
    packed = ha.pack_augment(augment, size, **options)
    return _core.augment(image, packed, (epoch, row, training))[0]


def matrix_of(image: np.ndarray, augment: object, size: object, row: int) -> np.ndarray:
    packed = ha.pack_augment(augment, size)
    return _core.augment(image, packed, (0, row, True))[4]


# ---- of what it is a function


def test_rows_epochs_and_seeds_draw_anew() -> None:
    image = noise()
    keys = list(itertools.product((0, 1, 2**40), (0, 1, 2, 2**33), (0, 1)))
    made = {
        run(image, EVERYTHING, 24, row, epoch=epoch, seed=seed).tobytes()
        for row, epoch, seed in keys
    }
    assert len(made) == len(keys)


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_and_order_change_nothing(n_threads: int) -> None:
    image = noise()
    packed = ha.pack_augment(EVERYTHING, 24, seed=3)
    want = [_core.augment(image, packed, (4, row, True))[0].tobytes() for row in range(80)]
    order = np.random.default_rng(n_threads).permutation(80).tolist()
    with concurrent.futures.ThreadPoolExecutor(n_threads) as pool:
        got = list(pool.map(lambda row: _core.augment(image, packed, (4, row, True))[0], order))
    assert [array.tobytes() for array in got] == [want[row] for row in order]


def test_a_step_draws_the_same_whatever_the_others_do() -> None:
    """Erasing in front of another step, or with one that draws more, erases the same place."""
    image = np.full((30, 30, 3), 200, np.uint8)
    for row in range(10):
        erased = run(image, [ha.RandomVerticalFlip(0), ha.RandomErasing(1)], 30, row) == 0
        noisy = [ha.GaussianNoise(0, 0.01), ha.RandomErasing(1)]
        assert np.array_equal(run(image, noisy, 30, row) == 0, erased)


def test_nothing_is_drawn_outside_of_training() -> None:
    image = noise(50, 70)
    plain = run(image, "none", 24)
    for augment in ("basic", "strong", EVERYTHING):
        for row, epoch in ((0, 0), (7, 3)):
            got = run(image, augment, 24, row, epoch=epoch, training=False)
            assert np.array_equal(got, plain)
    cut = run(image, [ha.CenterCrop(24)], 24)
    assert np.array_equal(cut, image[13:37, 23:47].transpose(2, 0, 1))
    for augment in ([ha.RandomCrop(24)], [ha.RandomCrop(24, padding=4)]):
        assert np.array_equal(run(image, augment, 24, 5, training=False), cut)
    assert not np.array_equal(plain, cut)


# ---- what is drawn


def within(share: float, p: float, n: int) -> bool:
    """Five standard deviations."""
    return abs(share - p) <= 5 * np.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_steps_happen_as_often_as_they_say(p: float) -> None:
    image = noise(4, 6)
    n = 2000
    steps = {
        ha.RandomHorizontalFlip(p): image[:, ::-1],
        ha.RandomVerticalFlip(p): image[::-1],
        ha.RandomGrayscale(p): None,
        ha.RandomPerspective(1.0, p): None,
    }
    plain = image.transpose(2, 0, 1)
    for step, moved in steps.items():
        made = [run(image, [step], (4, 6), row) for row in range(n)]
        changed = [not np.array_equal(planes, plain) for planes in made]
        if not isinstance(step, ha.RandomPerspective):  # which may draw no distortion
            assert within(np.mean(changed), p, n)
        else:
            assert np.mean(changed) <= p + 5 * np.sqrt(p * (1 - p) / n)
        if moved is not None:
            want = moved.transpose(2, 0, 1)
            assert all(np.array_equal(m, want) for m, c in zip(made, changed, strict=True) if c)


def test_flips_of_two_steps_are_independent() -> None:
    image = noise(3, 5)
    n = 4000
    steps = [ha.RandomHorizontalFlip(), ha.RandomVerticalFlip()]
    seen = np.zeros((2, 2))
    for row in range(n):
        m = matrix_of(image, steps, (3, 5), row)
        seen[int(m[0, 0] < 0), int(m[1, 1] < 0)] += 1 / n
    assert all(within(share, 0.25, n) for share in seen.reshape(-1))


def test_random_resized_crops_have_the_drawn_areas_and_shapes() -> None:
    image = noise(400, 400)
    n = 2000
    areas, ratios, tops = [], [], []
    for row in range(n):
        m = matrix_of(
            image, [ha.RandomResizedCrop((50, 100), (0.2, 0.6), (0.5, 2))], (50, 100), row
        )
        height, width = 50 * m[1, 1], 100 * m[0, 0]
        assert 0 <= m[1, 2] <= 400 - height + 1e-9
        assert 0 <= m[0, 2] <= 400 - width + 1e-9
        areas.append(height * width / 160000)
        ratios.append(width / height)
        if height < 399:
            tops.append(m[1, 2] / (400 - height))
    slack = 0.01  # sides are whole pixels
    assert 0.2 - slack < min(areas) < 0.21
    assert 0.59 < max(areas) < 0.6 + slack
    assert 0.5 - slack < min(ratios) < 0.52
    assert 1.92 < max(ratios) < 2 + 4 * slack
    assert abs(np.mean(np.log(ratios))) < 5 * np.log(4) / np.sqrt(12 * n)
    assert abs(np.mean(tops) - 0.5) < 5 / np.sqrt(12 * n)
    assert np.histogram(areas, 4, (0.2, 0.6))[0].min() > 0.15 * n


def test_where_no_crop_fits_the_centre_is_taken() -> None:
    """An area as large as the image in a shape that it has not, as torchvision does."""
    image = noise(20, 200)
    m = matrix_of(image, [ha.RandomResizedCrop(10, (1, 1), (1, 2))], 10, 0)
    assert np.allclose(m, [[4, 0, 80], [0, 2, 0], [0, 0, 1]])
    image = noise(200, 20)
    m = matrix_of(image, [ha.RandomResizedCrop(10, (1, 1), (0.5, 1))], 10, 0)
    assert np.allclose(m, [[2, 0, 0], [0, 4, 80], [0, 0, 1]])


def test_random_crops_are_everywhere() -> None:
    image = noise(10, 12)
    n = 4000
    seen = np.zeros((5, 4))
    for row in range(n):
        m = matrix_of(image, [ha.RandomCrop((8, 11), padding=1)], (8, 11), row)
        seen[int(m[1, 2]) + 1, int(m[0, 2]) + 1] += 1 / n
    assert all(within(share, 1 / 20, n) for share in seen.reshape(-1))


def test_angles_are_uniform() -> None:
    image = noise(20, 20)
    n = 2000
    angles = []
    for row in range(n):
        m = matrix_of(image, [ha.RandomRotation((10, 70))], 20, row)
        angles.append(np.degrees(np.arctan2(m[1, 0], m[0, 0])))
    assert min(angles) > 10
    assert max(angles) < 70
    assert abs(np.mean(angles) - 40) < 5 * 60 / np.sqrt(12 * n)
    assert np.histogram(angles, 4, (10, 70))[0].min() > 0.2 * n


# ---- words


def test_words_mean_these_steps() -> None:
    assert ha.read_augment(None, 32, 32) == []
    assert ha.read_augment("none", 32, 32) == []
    small = [type(step).__name__ for step in ha.read_augment("basic", 64, 64)]
    assert small == ["_Fit", "RandomCrop", "RandomHorizontalFlip"]
    large = [type(step).__name__ for step in ha.read_augment("basic", 65, 10)]
    assert large == ["RandomResizedCrop", "RandomHorizontalFlip"]
    strong = [type(step).__name__ for step in ha.read_augment("strong", 224, 224)]
    assert strong == [*large, "TrivialAugmentWide", "RandomErasing"]
    step = ha.RandomGrayscale()
    assert ha.read_augment(step, 1, 1) == [step]


def test_basic_moves_small_images_by_at_most_four_pixels() -> None:
    image = noise(64, 96) // 2 + 100  # nothing is black
    seen = set()
    for row in range(300):
        m = matrix_of(image, "basic", 32, row)
        left = m[0, 2] if m[0, 0] > 0 else m[0, 2] + 32 * m[0, 0]
        offset = (left - 16) / 2, m[1, 2] / 2  # of the 64 x 64 in the middle, at half its size
        assert max(abs(x) for x in offset) <= 4
        seen.add((*offset, m[0, 0] > 0))
    assert len(seen) > 100
    planes = run(image, "basic", 32, 3)
    assert planes.shape == (3, 32, 32)


# ---- masks and keypoints

MOVES = {
    "flips": [ha.RandomHorizontalFlip(1), ha.RandomVerticalFlip(1)],
    "crop": [ha.RandomCrop(padding=6)],
    "reflected": [ha.RandomCrop(padding=6, padding_mode="reflect"), ha.RandomRotation(20)],
    "resized": [ha.RandomResizedCrop()],
    "affine": [ha.RandomAffine(60, (0.2, 0.2), (0.7, 1.3), 15)],
    "perspective": [ha.RandomPerspective(0.5, 1)],
    "all": [ha.RandomCrop(padding=3), ha.RandomAffine(30), ha.RandomPerspective(0.3, 1)],
}


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("moves", MOVES)
def test_masks_follow_their_images(moves: str, dtype: type) -> None:
    """By the nearest pixel, an image whose levels are labels is moved as its mask."""
    mask = np.random.default_rng(2).integers(1, 200, (40, 40))
    image = mask.astype(np.uint8)[..., None]
    packed = ha.pack_augment([*MOVES[moves], ha.ColorJitter(0)], 40, interpolation="nearest")
    outside = 0
    for row in range(25):
        planes, labels, *_ = _core.augment(image, packed, (0, row, True), mask.astype(dtype))
        assert labels.dtype == dtype
        assert np.array_equal(planes[0], labels)
        outside += int((labels == 0).sum())
    assert (outside > 0) == (moves not in ("flips", "reflected", "resized"))


def test_masks_may_have_another_size() -> None:
    image, mask = noise(60, 80), np.kron(np.arange(12).reshape(3, 4), np.ones((5, 5), int))
    large = np.kron(mask, np.ones((4, 4), int))
    for steps in ([ha.RandomResizedCrop()], [ha.RandomRotation(30)]):
        packed = ha.pack_augment(steps, (30, 40))
        for row in range(10):
            key = (0, row, True)
            small_labels = _core.augment(image, packed, key, mask)[1]
            assert np.array_equal(small_labels, _core.augment(image, packed, key, large)[1])


@pytest.mark.parametrize("moves", MOVES)
def test_keypoints_follow_their_images(moves: str) -> None:
    """A bright spot is where its keypoint says."""
    points = np.array([[8, 5], [30, 12], [20, 33], [2, 37], [38, 20]], np.float32)
    y, x = np.mgrid[0:40, 0:40]
    spots = [np.exp(-((x - px) ** 2 + (y - py) ** 2) / 8) for px, py in points]
    packed = ha.pack_augment(MOVES[moves], 40)
    n_inside = n_outside = n_compared = 0
    for row in range(20):
        for spot, point in zip(spots, points, strict=True):
            image = (250 * spot).astype(np.uint8)[..., None]
            planes, _, moved, inside, _ = _core.augment(
                image, packed, (1, row, True), None, point[None]
            )
            (px, py), is_inside = moved[0], bool(inside[0])
            assert is_inside == (-0.5 <= px < 39.5 and -0.5 <= py < 39.5)
            n_inside += is_inside
            n_outside += not is_inside
            if not (4 <= px <= 35 and 4 <= py <= 35) or planes[0].max() < 200:
                continue  # the spot is cut
            if moves == "reflected" and min(*point, *(39 - point)) < 8:
                continue  # another one is near
            n_compared += 1
            level = planes[0].astype(float)
            level *= (np.hypot(x - px, y - py) < 6) & (level > 125)
            centre = (level * x).sum() / level.sum(), (level * y).sum() / level.sum()
            assert np.hypot(centre[0] - px, centre[1] - py) < 0.75
    assert n_compared > 15
    assert n_inside >= n_compared
    assert (n_outside > 0) == (moves not in ("flips", "perspective"))


def test_keypoints_of_a_resize_are_exact() -> None:
    """The centre of a pixel is a whole number, so edges are at -0.5."""
    image = noise(20, 40)
    points = np.array([[-0.5, -0.5], [39.5, 19.5], [19.5, 9.5], [np.nan, 0]], np.float32)
    packed = ha.pack_augment("none", (10, 80), fit="squash")
    _, _, moved, inside, _ = _core.augment(image, packed, (0, 0, True), None, points)
    assert np.allclose(moved[:3], [[-0.5, -0.5], [79.5, 9.5], [39.5, 4.5]])
    assert inside.tolist() == [True, False, True, False]


def test_points_behind_a_perspective_are_nowhere() -> None:
    image = noise(40, 40)
    far = np.stack(np.meshgrid(np.linspace(-4e3, 4e3, 30), np.linspace(-4e3, 4e3, 30)), -1)
    points = far.reshape(-1, 2).astype(np.float32)
    behind = 0
    for row in range(10):
        packed = ha.pack_augment([ha.RandomPerspective(0.9, 1)], 40)
        _, _, moved, inside, m = _core.augment(image, packed, (0, row, True), None, points)
        gone = np.isnan(moved).any(1)
        assert not inside[gone].any()
        behind += gone.sum()
        x, y = (moved[~gone] + 0.5).astype(float).T
        assert (m[2, 0] * x + m[2, 1] * y + m[2, 2] > 0).all()
    assert behind > 100


# ---- sources that were decoded smaller


def test_reduced_images_are_the_same_picture() -> None:
    y, x = np.mgrid[0:120, 0:160]
    large = 127 + 90 * np.stack([np.sin(x / 25), np.cos(y / 20), np.sin((x + y) / 30)], -1)
    small = large.reshape(60, 2, 80, 2, 3).mean((1, 3)).astype(np.uint8)
    large = large.astype(np.uint8)
    for steps in ([ha.RandomResizedCrop()], EVERYTHING[:4]):
        packed = ha.pack_augment(steps, 32)
        for row in range(10):
            key = (0, row, True)
            whole = _core.augment(large, packed, key)
            half = _core.augment(small, packed, key, None, None, (120, 160))
            assert np.array_equal(whole[4], half[4])
            apart = np.abs(whole[0].astype(int) - half[0])
            edges = (whole[0] == 0) != (half[0] == 0)  # the fill ends half a pixel elsewhere
            # A pixel of the smaller one is 2 wide, and a slope at most 4.5 levels a pixel.
            assert apart[~edges].max() <= 9
            assert edges.mean() < 0.02


# ---- wrong arguments


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ha.Resize(0), "Resize: size: must be at least 1, got 0"),
        (lambda: ha.Resize(20000), "at most 16384"),
        (lambda: ha.Resize((1, 2, 3)), "must be a number of pixels or (height, width)"),
        (lambda: ha.Resize(8, "lanczos"), "Resize: interpolation: must be one of 'nearest'"),
        (lambda: ha.CenterCrop("8"), "CenterCrop: size: a whole number is needed"),
        (lambda: ha.RandomCrop(8, padding=-1), "RandomCrop: padding: must be at least 0"),
        (lambda: ha.RandomCrop(8, padding=(1, 2, 3)), "one, two or four"),
        (lambda: ha.RandomCrop(8, padding_mode="wrap"), "padding_mode: must be one of"),
        (lambda: ha.RandomCrop(8, fill=256), "RandomCrop: fill: must be at most 255"),
        (lambda: ha.RandomResizedCrop(8, (0, 1)), "scale: must be at least 1e-06, got 0"),
        (lambda: ha.RandomResizedCrop(8, (0.5, 0.2)), "scale: must be (least, most)"),
        (lambda: ha.RandomResizedCrop(8, 0.5), "scale: must be (least, most), got 0.5"),
        (lambda: ha.RandomResizedCrop(8, ratio=(-1, 2)), "ratio: must be at least 0.001"),
        (lambda: ha.RandomHorizontalFlip(1.5), "RandomHorizontalFlip: p: must be at most 1"),
        (lambda: ha.RandomVerticalFlip(float("nan")), "p: a number must be finite"),
        (lambda: ha.RandomRotation(-3), "degrees: must be at least 0, got -3"),
        (lambda: ha.RandomAffine(0, (2, 0)), "translate: must be at most 1, got 2"),
        (lambda: ha.RandomAffine(0, 0.1), "translate: must be (across, down)"),
        (lambda: ha.RandomAffine(0, scale=(0, 1)), "RandomAffine: scale: must be at least 0.01"),
        (lambda: ha.RandomAffine(0, shear=(1, 2, 3)), "RandomAffine: shear: must be (least, most)"),
        (lambda: ha.RandomPerspective(2), "distortion_scale: must be at most 1"),
        (lambda: ha.ColorJitter(-1), "brightness: must be at least 0, got -1"),
        (lambda: ha.ColorJitter(hue=0.7), "hue: must be at most 0.5, got 0.7"),
        (lambda: ha.ColorJitter(hue=(-0.6, 0)), "hue: must be at least -0.5"),
        (lambda: ha.GaussianBlur(4), "kernel_size: must be odd"),
        (lambda: ha.GaussianBlur(3, 0), "sigma: must be at least 0.001"),
        (lambda: ha.GaussianNoise(sigma=-1), "sigma: must be at least 0"),
        (lambda: ha.RandomErasing(value="noise"), "RandomErasing: value"),
        (lambda: ha.RandomErasing(scale=(0, 2)), "scale: must be at most 1"),
        (lambda: ha.TrivialAugmentWide(1), "num_magnitude_bins: must be at least 2"),
        (lambda: ha.RandAugment(2, 31), "magnitude: must be at most 30, got 31"),
        (lambda: ha.pack_augment("weak", 8), "augment: must be one of 'none', 'basic', 'strong'"),
        (lambda: ha.pack_augment([3], 8), "augment[0]: must be a step of hl.augment"),
        (lambda: ha.pack_augment(3, 8), "augment: must be 'none', 'basic', 'strong' or a list"),
        (lambda: ha.pack_augment("none", 8, fit="cover"), "fit: must be one of"),
        (
            lambda: ha.pack_augment(
                [ha.RandomRotation(1, fill=1), ha.RandomRotation(1, fill=2)], 8
            ),
            "fill must be the same in all steps, got (1,) of RandomRotation(1) and (2,)",
        ),
    ],
)
def test_wrong_arguments(make: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_steps_of_torchvision_are_named() -> None:
    class RandomGrayscale:
        pass

    with pytest.raises(ConfigError, match=r"write hl\.augment\.RandomGrayscale"):
        ha.read_augment([RandomGrayscale()], 8, 8)


def test_steps_that_state_the_same_agree() -> None:
    steps = [ha.Resize(8, "bicubic"), ha.RandomResizedCrop(8, interpolation="bicubic")]
    assert ha.pack_augment([*steps, ha.RandomGrayscale()], 8)[3] == 2
    assert ha.pack_augment([], 8)[3] == 1


def test_images_smaller_than_their_crop() -> None:
    image = noise(20, 30)
    with pytest.raises(DataError, match="random_crop: the image with its padding must have at"):
        run(image, [ha.RandomCrop(32, padding=4)], 32)
    planes = run(image, [ha.RandomCrop(32, pad_if_needed=True)], 32)
    assert planes.any()
    assert (planes == 0).any()


def test_the_core_checks_what_is_packed() -> None:
    image = noise()
    good = ha.pack_augment([ha.RandomErasing()], 8)
    key = (0, 0, True)
    with pytest.raises(ConfigError, match="there is no kind shake"):
        _core.augment(image, (*good[:6], (("shake", 1.0, ()),)), key)
    with pytest.raises(ConfigError, match="random_erasing: must have 9 entries, got 1"):
        _core.augment(image, (*good[:6], (("random_erasing", 1.0, (1.0,)),)), key)
    with pytest.raises(ConfigError, match="p must be from 0 to 1, got 2"):
        _core.augment(image, (*good[:6], (("random_grayscale", 2.0, ()),)), key)
    with pytest.raises(ConfigError, match="32 steps at most, got 33"):
        _core.augment(image, ha.pack_augment([ha.RandomGrayscale()] * 33, 8), key)
    with pytest.raises(ShapeError, match="image: must be uint8 of shape"):
        _core.augment(image[..., 0], good, key)
    with pytest.raises(ShapeError, match="image: must be uint8 of shape"):
        _core.augment(image.astype(np.float32), good, key)
    with pytest.raises(ShapeError, match="labels: must be integers"):
        _core.augment(image, good, key, np.zeros((4, 4)))
    with pytest.raises(ShapeError, match="points: must be float32"):
        _core.augment(image, good, key, None, np.zeros((4, 3), np.float32))


def test_allocations_that_fail_are_errors() -> None:
    image = noise(90, 120)
    packed = ha.pack_augment([*EVERYTHING[:6], ha.GaussianBlur(5), ha.RandAugment(5)], 16)
    want = _core.augment(image, packed, (0, 1, True))[0]
    before = _core.alloc_stats()["n_live"]
    failed = 0
    for k in range(1, 12):
        _core.alloc_fault(k, True)
        try:
            got = _core.augment(image, packed, (0, 1, True))[0]
            assert np.array_equal(got, want)
        except MemoryError:
            failed += 1
        finally:
            _core.alloc_fault(0)
        assert _core.alloc_stats()["n_live"] == before
    assert failed > 0
