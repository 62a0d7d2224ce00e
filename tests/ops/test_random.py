"""dropout_mask and uniform: bit by bit against a Philox of our own, on every device.

The oracle is written here from Salmon et al. 2011 and from the counter's layout in
csrc/base/rng.h: key of (seed, stream), counter (attempted step, sample, element / 8).
"""

import numpy as np
import pytest
from hotloop import _core
from ops.harness import FAST, ISAS, Array

RANDOM_OPS = ("dropout_mask", "uniform")
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
DEVICES = [("ref", None), *FAST]


def splitmix64(x: int) -> int:
    """Steele et al. 2014."""
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def make_key(seed: int, stream: str) -> tuple[int, int]:
    """FNV-1a of the stream's name, mixed with the seed by splitmix64."""
    name = 0xCBF29CE484222325
    for byte in stream.encode():
        name = (name ^ byte) * 0x100000001B3 & M64
    key = splitmix64(splitmix64(seed) ^ name)
    return key & M32, key >> 32


def philox(key: tuple[int, int], counter: list[int]) -> list[int]:
    """Philox4x32-10."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & M32, (p0 >> 32) ^ c3 ^ k1, p0 & M32
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return [c0, c1, c2, c3]


def test_philox_known_answers() -> None:
    """The vectors of the authors' distribution (Random123, kat_vectors)."""
    assert philox((0, 0), [0] * 4) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox((M32, M32), [M32] * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def draw(
    backend: str,
    isa: str | None,
    op: str,
    shape: tuple[int, ...],
    *,
    threads: int = 0,
    attempted: int = 0,
    **attrs: object,
) -> Array:
    """One run of a random op in a session of its own."""
    session = _core.Session(_core.Device(backend, 0, threads, isa))
    graph = _core.Graph()
    (value,) = graph.add(op, [graph.control()], shape=shape, **attrs)
    graph.output(value)
    plan = _core.Plan(session, graph)
    if attempted:
        session.control_set(attempted=attempted)
    plan.run(1, 1e9)
    return plan.output(0)


def draw_bits(shape: tuple[int, ...], seed: int, stream: str, step: int) -> Array:
    """16 bits per element: a sample is a row, its elements are counted in row-major order."""
    key = make_key(seed, stream)
    rows, size = shape[0], int(np.prod(shape[1:]))
    out = np.zeros((rows, size), np.int64)
    for sample in range(rows):
        for block in range(-(-size // 8)):
            words = philox(key, [step, sample, block, 0])
            for e in range(block * 8, min(size, block * 8 + 8)):
                out[sample, e] = words[e % 8 // 2] >> 16 * (e % 2) & 0xFFFF
    return out.reshape(shape)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 33), (3, 2, 9)], ids=str)
def test_bits_are_the_papers(shape: tuple[int, ...], step: int) -> None:
    bits = draw_bits(shape, 5, "body.0.dropout", step)
    got = draw("ref", None, "uniform", shape, stream="body.0.dropout", seed=5, attempted=step)
    np.testing.assert_array_equal(got, (bits + 0.5) / 65536)
    for p in (0.2, 0.5):
        mask = draw(
            "ref", None, "dropout_mask", shape, stream="body.0.dropout", seed=5, p=p, attempted=step
        )
        np.testing.assert_array_equal(mask == 0, bits < round(p * 65536))


SHAPES = [(1,), (7,), (3, 5), (64, 33), (17, 3, 8), (1003, 2), (2, 1003), (0, 4), (33, 16)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_bits_everywhere(shape: tuple[int, ...]) -> None:
    """Every device, instruction set and number of threads draws the same numbers."""
    for op, attrs in (("uniform", {}), ("dropout_mask", {"p": 0.3})):
        want = draw("ref", None, op, shape, stream="a", seed=5, **attrs)
        for backend, isa in DEVICES[1:]:
            for threads in (1, 2, 7):
                got = draw(backend, isa, op, shape, threads=threads, stream="a", seed=5, **attrs)
                np.testing.assert_array_equal(got, want.astype(np.float32), f"{op} {isa}")


def test_values_are_16_bits() -> None:
    values = draw("ref", None, "uniform", (4096, 16), stream="s", seed=1)
    k = values * 65536 - 0.5
    assert np.array_equal(k, np.round(k))
    assert k.min() >= 0
    assert k.max() <= 65535
    # 65,536 draws: the mean within 5 sigma of 1/2, every one of 16 bins within 5 sigma
    assert abs(values.mean() - 0.5) < 5 / np.sqrt(12 * values.size)
    counts = np.histogram(values, 16, (0, 1))[0]
    assert np.all(np.abs(counts - 4096) < 5 * np.sqrt(4096))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_mask_is_threshold_of_bits(p: float) -> None:
    """p is met by a threshold of 16 bits, and what is kept is scaled by what that keeps."""
    mask = draw("ref", None, "dropout_mask", (257, 33), stream="s", seed=3, p=p)
    kept = np.unique(mask[mask != 0])
    assert kept.size <= 1
    if p < 1:  # by the share that is really kept, so that the mean is the input's
        np.testing.assert_allclose(kept, [65536 / (65536 - round(p * 65536))], rtol=1e-15)
    share = (mask == 0).mean()
    assert abs(share - p) <= 5 * np.sqrt(p * (1 - p) / mask.size) + 2**-16


def test_counter_is_step_and_sample() -> None:
    """Another step, seed or stream draws anew; the first rows of a longer batch are the same."""
    base = draw("cpu", ISAS[0], "uniform", (64, 33), stream="s", seed=3)
    longer = draw("cpu", ISAS[0], "uniform", (97, 33), stream="s", seed=3)
    np.testing.assert_array_equal(base, longer[:64])
    for change in ({"attempted": 1}, {"seed": 4}, {"stream": "t"}):
        other = draw("cpu", ISAS[0], "uniform", (64, 33), **({"stream": "s", "seed": 3} | change))
        assert (other == base).mean() < 0.01, change
        assert abs(np.corrcoef(other.ravel(), base.ravel())[0, 1]) < 5 / np.sqrt(base.size)
