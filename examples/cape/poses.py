"""Pictures of coloured skeleton figures with known keypoints, drawn by NumPy.

A category is a skeleton of its own: 5 to 12 joints in a tree, with lengths and angles. A picture
shows it bent, turned, of another size, elsewhere, in other colours, on another background, and
sometimes behind a disc. All follows from the seed and the numbers of category and picture.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

LEAST, MOST = 5, 12  # joints


def make_skeleton(rng):
    """Each joint's parent, which stands before it, and its place in the figure at rest."""
    n = rng.integers(LEAST, MOST + 1)
    parents, places = [0], [np.zeros(2)]
    while len(places) < n:
        # The last joint or any: limbs of several joints, which branch. None lies on another.
        parent = len(places) - 1 if rng.random() < 0.6 else rng.integers(len(places))
        turn, length = rng.uniform(0, 2 * np.pi), rng.uniform(0.7, 1.3)
        place = places[parent] + length * np.array([np.cos(turn), np.sin(turn)])
        if min(np.hypot(*(place - other)) for other in places) > 0.6:
            parents.append(parent)
            places.append(place)
    return np.array(parents), np.array(places)


def pose(rng, parents, places):
    """The joints of a figure, bent, in a square of 1."""
    points = np.zeros_like(places)
    for i in range(1, len(places)):
        limb = (places[i] - places[parents[i]]) * rng.uniform(0.85, 1.15)
        points[i] = points[parents[i]] + rotation(rng.normal(0, 0.2)) @ limb
    points = points @ rotation(rng.uniform(-0.5, 0.5)).T  # 29 degrees either way
    points -= points.min(0)
    points *= rng.uniform(0.4, 0.85) / points.max()
    return points + rng.uniform(0.05, 0.95 - points.max(0))


def rotation(turn):
    """The matrix of a turn."""
    return np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])


def draw(rng, points, parents, size):
    """``(3, size, size)`` levels, and which joints are to be seen."""
    pixels = (np.stack(np.meshgrid(*2 * [np.arange(size)])) + 0.5) / size
    image = rng.uniform(0, 160, (3, 1)) + rng.normal(0, 40, (3, 2)) @ pixels.reshape(2, -1)
    image = image.reshape(3, size, size)

    def paint(distance, radius, colour):
        nonlocal image
        share = np.clip((radius - distance) * size + 0.5, 0, 1)  # smooth edges
        image = image + share * (colour[:, None, None] - image)

    colours, width = rng.uniform(60, 255, (len(points), 3)), rng.uniform(0.015, 0.03)
    for i in range(1, len(points)):
        begin, limb = points[parents[i]], points[i] - points[parents[i]]
        off = pixels - begin[:, None, None]
        along = np.clip(np.einsum("i,ixy->xy", limb, off) / (limb @ limb), 0, 1)
        paint(np.hypot(*(off - along * limb[:, None, None])), width, colours[i])
    for point, colour in zip(points, colours):
        paint(np.hypot(*(pixels - point[:, None, None])), 1.6 * width, colour)
    is_seen = np.ones(len(points), bool)
    if rng.random() < 0.3:
        centre, radius = points[rng.integers(len(points))], rng.uniform(0.03, 0.08)
        paint(np.hypot(*(pixels - centre[:, None, None])), radius, rng.uniform(0, 255, 3))
        is_seen = np.hypot(*(points - centre).T) > radius
    return np.clip(image + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8), is_seen


def make_poses(categories, pictures, size, seed=0, points=MOST):
    """Pictures of each category.

    Gives images ``(N, 3, size, size)``, joints ``(N, points, 3)``, x and y in [0, 1] of the image
    and 1, or 0 for a joint that is hidden or that there is not, and the categories ``(N,)``.
    """
    if points < MOST:
        raise ValueError(f"points: must be {MOST} at least, as a figure has up to {MOST} joints, "
                         f"got {points}; give --points {MOST} or more")  # fmt: skip
    images, joints = [], np.zeros((categories * pictures, points, 3), np.float32)
    for category in range(categories):
        parents, places = make_skeleton(np.random.default_rng((seed, category)))
        for picture in range(pictures):
            rng = np.random.default_rng((seed, category, picture))
            at = pose(rng, parents, places)
            image, is_seen = draw(rng, at, parents, size)
            row = joints[len(images), : len(at)]
            row[is_seen, :2], row[is_seen, 2] = at[is_seen], 1
            images.append(image)
    return np.stack(images), joints, np.repeat(np.arange(categories), pictures)


def mark(image, points, truth=None, scale=4):
    """``(height, width, 3)``, larger: a disc at each point, from the first in red to the last in
    violet, and a line from it to where it ought to be."""
    pixels = np.kron(image.transpose(1, 2, 0), np.ones((scale, scale, 1))).astype(np.uint8)
    size, spots = len(pixels), np.stack(np.meshgrid(*2 * [np.arange(len(pixels))]), 2) + 0.5
    for i, (*at, is_there) in enumerate(points):
        if not is_there:
            continue
        hue = 2 * np.pi * (0.8 * i / len(points) - np.arange(3) / 3)
        colour = (np.clip(0.5 + np.cos(hue), 0, 1) * 255).astype(np.uint8)
        goal = at if truth is None else truth[i, :2]
        for share in np.linspace(0, 1, 100):
            x, y = np.array(at) + share * (np.array(goal) - at)
            pixels[min(int(y * size), size - 1), min(int(x * size), size - 1)] = colour
        distance = np.hypot(*(spots - np.array(at) * size).transpose(2, 0, 1))
        pixels[distance < 6.5] = 255
        pixels[distance < 5] = colour
    return pixels


def write_png(path, pixels):
    """An image ``(height, width, 3)`` as a file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows), b"IEND": b""}
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in chunks.items():
            checked = kind + data
            file.write(struct.pack(">I", len(data)) + checked)
            file.write(struct.pack(">I", zlib.crc32(checked)))
