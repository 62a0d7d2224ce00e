"""The C core as Python sees it. Private: `hotloop` wraps it; names may change between versions.

Errors: a wrong Python type is a TypeError, everything else an exception of `hotloop.errors`. dtypes
are names: float32 float64 bfloat16 float16 int64 int32 int16 int8 uint8 bool. Arrays that are
copied in may have any strides and byte order; those that are kept (Plan.dataset) must be
C-contiguous, aligned and native. NumPy has no bfloat16: such values come out as uint16 with the
same bits, and uint16 arrays are taken for it where a store, source or input is bfloat16. All types
are final. One thread at a time uses a session and its plans; a second one gets BusyError.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, final

import numpy as np
import numpy.typing as npt

__version__: Final[str]

def op_table() -> list[dict[str, Any]]:
    """Every op that may be added from Python, in the table's order.

    name, min_in, max_in (-1: any number), n_out, attrs (schema, "kind:name[=default] ..."), doc,
    differentiable, pointwise.
    """

def build_info() -> dict[str, Any]:
    """How this extension was built.

    compiler, optimized, assertions, sanitizers, instruction_sets, python_abi, cuda ("13.0: sm_75,
    compute_75", or False).
    """

def log_take() -> tuple[str, str] | None:
    """Oldest (level, text) of the core's log, or None."""

def alloc_stats() -> dict[str, int]:
    """current_bytes, peak_bytes, n_live, n_total of the core's allocator."""

def alloc_peak_reset() -> None: ...
def alloc_fault(k: int, sticky: bool = False, /) -> int:
    """For tests: the k-th allocation from now fails (0: none), and all later ones if sticky.

    Returns how many were made since the last call.
    """

def backends() -> tuple[str, ...]: ...
def survey(backend: str, library_roots: str | None = None, *, probe: bool = True) -> dict[str, Any]:
    """What a backend of GPUs finds: devices, libraries, why_none, absent.

    devices: name, architecture, free_bytes, total_bytes, why_not; libraries: name, path, version,
    why_not. library_roots: folders that may hold nvidia wheels, with ":" between them. probe: each
    device is opened and each library, so that why_not is known; else devices are named only.
    absent: nothing of the kind is in this machine.
    """

def cpu_info() -> dict[str, Any]:
    """name, threads, isa (usable instruction sets, best first)."""

def random_uniform(
    seed: int, stream: str, n: int, low: float, high: float
) -> npt.NDArray[np.float64]: ...
def random_normal(
    seed: int, stream: str, n: int, mean: float, std: float
) -> npt.NDArray[np.float64]: ...
def random_trunc_normal(
    seed: int, stream: str, n: int, mean: float, std: float, low: float, high: float
) -> npt.NDArray[np.float64]: ...
def permutation(seed: int, stream: str, epoch: int, n: int) -> npt.NDArray[np.int64]: ...
def image_decoder() -> dict[str, str | None]:
    """version and path of TurboJPEG (None: it is not there), and why_not."""

def image_header(file: str | bytes | os.PathLike[str], /) -> tuple[str, int, int]:
    """(format, height, width) of a path or of bytes, upright; 0 for sizes that only a decoder
    knows.
    """

def decode_image(
    file: str | bytes | os.PathLike[str],
    channels: int = 3,
    min_height: int = 0,
    min_width: int = 0,
    reader: Callable[[str, bytes, int, int, int], npt.NDArray[np.uint8]] | None = None,
    /,
) -> npt.NDArray[np.uint8]:
    """The image of a path or of bytes, uint8 (height, width, channels), upright.

    A JPEG may be given smaller than it is stored as long as both sides have at least these; 0: as
    stored. reader: of what TurboJPEG does not decode.
    """

def image_source(
    paths: bytes,
    n: int,
    channels: int,
    augment: tuple[Any, ...],
    *,
    reader: Callable[[str, bytes, int, int, int], npt.NDArray[np.uint8]] | None = None,
    caching: str = "nothing",
    cache_bytes: int = 0,
    on_bad: str = "raise",
    bad_max: int = 0,
    companions: Sequence[npt.NDArray[Any]] = (),
    annotations: tuple[
        bytes | None,
        Callable[[str, bytes, int, int, int], npt.NDArray[np.uint8]] | None,
        int,
        int,
        npt.NDArray[np.float32] | None,
        npt.NDArray[np.int32] | None,
    ]
    | None = None,
    stored: tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]] | None = None,
) -> Source:
    """A Source of n image files, whose names stand in bytes, each with a NUL.

    Fields: the image, uint8 (channels, height, width) by the packed augmentation; with on_bad
    "skip" its weight, float32, 0 for a file that cannot be decoded; then its mask, class ids
    (height, width), and its points, float32 (n_points, 3); then a row of each companion, with
    "replace" that of the file that is shown. caching: "nothing", "files" or "images", at most
    cache_bytes. More than bad_max bad files are an error whatever on_bad says.

    annotations: names of the masks' files, their reader, the number of classes, the id that is
    ignored (-1: none), points float32 (n, n_points, 3) and int32 (n_points,) partners of points
    where images are mirrored.

    stored: int64 (n, 5) of offset (-1: the file is read), height and width of images that lie
    decoded in pixels, and of those of their files; used in place.
    """

def image_report(source: Source, /) -> dict[str, Any]:
    """bad_rows (int64), first_bad (its message, or ""), cached_rows, cached_bytes of an
    image_source.
    """

def file_source(
    paths: bytes,
    offsets: npt.NDArray[np.int64],
    divisors: npt.NDArray[np.float32],
    shape: tuple[int, ...],
    allow_nonfinite: bool,
    function: Callable[
        [npt.NDArray[np.int64], int, bool, npt.NDArray[np.int64] | None],
        Sequence[npt.NDArray[Any]],
    ],
    /,
) -> Source:
    """A Source of float32 rows of a shape, each of which lies in a file, from an offset in bytes
    on, and is divided by its divisor. Names of files stand in bytes, each with a NUL.

    Batches that cannot be read, or have numbers that are not finite and may not, are made by
    function, as Source has it, which may say more of what is wrong.
    """

def augment(
    image: npt.NDArray[np.uint8],
    augment: tuple[Any, ...],
    key: tuple[int, int, bool],
    labels: npt.NDArray[Any] | None = None,
    points: npt.NDArray[np.float32] | None = None,
    source: tuple[int, int] | None = None,
    /,
) -> tuple[
    npt.NDArray[np.uint8],
    npt.NDArray[Any] | None,
    npt.NDArray[np.float32] | None,
    npt.NDArray[np.bool_] | None,
    npt.NDArray[np.float64],
]:
    """Planes, labels, points, whether each is inside, and the matrix from the output to the
    source: of an image (height, width, channels) by a packed augmentation, key (epoch, row,
    is_training)."""

def check_finite(array: npt.NDArray[Any], /) -> tuple[int, ...] | None:
    """Index of the first NaN or infinity of a float array (any strides), or None."""

def check_range(array: npt.NDArray[Any], low: int, high: int, /) -> tuple[int, ...] | None:
    """Index of the first integer outside [low, high), or None."""

@final
class Graph:
    """SSA graph; values are ints. Every method raises ShapeError, TraceError or ConfigError with a
    sentence.
    """

    def __new__(cls) -> Self: ...
    def store(self, name: str, dtype: str, n: int, /) -> None: ...
    def input(self, name: str, dtype: str, shape: Sequence[int], /) -> int: ...
    def dataset(
        self, name: str, dtype: str, shape: Sequence[int], is_streamed: bool = False, /
    ) -> int: ...
    def param(
        self, name: str, dtype: str, shape: Sequence[int], store: str, offset: int, /
    ) -> int: ...
    def state(
        self, name: str, dtype: str, shape: Sequence[int], store: str, offset: int, /
    ) -> int: ...
    def scalar(self, name: str, /) -> int: ...
    def scalar_names(self) -> list[str]: ...
    def control(self) -> int: ...
    def const(self, array: npt.NDArray[Any], dtype: str | None = None, /) -> int:
        """float64 arrays may be rounded to a floating dtype; devices of float64 use the doubles."""
    def number(self, dtype: str, value: float, /) -> int: ...
    def add(self, op: str, inputs: Sequence[int], /, **attrs: Any) -> tuple[int, ...]: ...
    def commit(self, target: int, value: int, /) -> None: ...
    def accumulate(self, target: int, value: int, /) -> None:
        """A commit that adds to the target, in the target's dtype: target <- target + value."""
    def output(self, value: int, /) -> int:
        """Marks a value to be read after a run; returns its output number."""
    def outputs(self) -> list[int]:
        """The values marked as outputs, in order."""
    def scope(self, name: str | None, /) -> None: ...
    def fence(self) -> None:
        """Nodes added from now on never run side by side with those before."""
    def checkpoint_begin(self) -> None:
        """What is added from now on is computed again in the backward pass, not kept for it."""
    def checkpoint_end(self) -> None:
        """Goes back to the checkpoint that the last one was begun in, or to none."""
    def segment(self, name: str, /) -> None:
        """Of nodes added from now on: "begin", "micro" or "apply"."""
    def shape(self, value: int, /) -> tuple[int, ...]: ...
    def dtype(self, value: int, /) -> str: ...
    def kind(self, value: int, /) -> str:
        """param, state, input, dataset, scalar, const or act."""
    def name(self, value: int, /) -> str | None: ...
    def const_value(self, value: int, /) -> npt.NDArray[Any] | None:
        """A copy of a const leaf's array; None for other values."""
    def nodes(self) -> list[dict[str, Any]]:
        """op, inputs, outputs, attrs, scope, segment of every node in order."""
    def leaves(self) -> list[dict[str, Any]]:
        """id, kind, name, dtype, shape, store, offset, index of every leaf.

        index: the number of an input, dataset or scalar; None for others.
        """
    def depends(self, value: int, leaves: Sequence[int], /) -> list[bool]:
        """For each leaf, whether the value depends on it."""
    def backward(self, loss: int, wrt: Sequence[int], /) -> tuple[int | None, ...]:
        """Adds the gradients of a rank-0 value; None where it does not depend on one."""
    def training_step(
        self,
        terms: Sequence[tuple[int, int | None, float]],
        params: Sequence[int],
        spec: dict[str, Any],
        /,
    ) -> dict[str, Any]:
        """Makes the training step of csrc/passes/step.c out of a forward graph.

        terms: (sum, denominator or None for "mean over rows", weight) of each loss; params: the
        trainable PARAM leaves, in store order without gaps from offset 0. spec: rows (samples in a
        micro-batch), optimizer (op name), attrs (of the op), segments (list of (begin, end,
        lr_scale, weight_decay, began), began being the optimizer steps before the moments began),
        accumulate, clip_norm, clip_value (0 or None: none), ema (decay, 0 or None: none), ema_ramp,
        table (shape (S, T) of the scalar tables); all of them are needed. A call that fails leaves
        the graph as it was.

        Returns loss (value), no_grad (params that got no gradient, by index).
        """
    def clone(self) -> Graph: ...
    def verify(self) -> None: ...
    def __str__(self) -> str: ...

@final
class Device:
    """A device that plans run on."""

    def __new__(
        cls,
        backend: str,
        index: int = 0,
        n_threads: int = 0,
        isa: str | None = None,
        *,
        library_roots: str | None = None,
        gpu: str | None = None,
    ) -> Self:
        """gpu: the name of a GPU that is described ("T4"), in the place of the machine's."""
    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def float_dtype(self) -> str: ...
    @property
    def reduced_dtype(self) -> str:
        """The 16-bit type that it multiplies fast, or "float32": none."""
    @property
    def reduced_side(self) -> int:
        """Rows, columns and terms from which on a product gains clearly from that type."""
    @property
    def is_described(self) -> bool:
        """Whether there is no such device here: plans are predicted for it, nothing runs."""
    @property
    def unasked(self) -> tuple[tuple[str, str, int], ...]:
        """Of a described device: libraries that choose on the device.

        Of each the kernels in whose place it may stand, by the beginning of their names, its name
        and the bytes of workspace that it may take.
        """
    @property
    def ops(self) -> tuple[str, ...]: ...
    @property
    def lowered_ops(self) -> tuple[str, ...]:
        """Names of the ops that it runs as other ops, for lack of a kernel."""
    def memory(self) -> dict[str, int] | None:
        """current_bytes, peak_bytes (hotloop's), free_bytes, total_bytes (the device's).

        None where the device's memory is the host's.
        """
    def memory_peak_reset(self) -> None: ...
    def autotune_cache(self) -> str:
        """The autotune cache of its kernels, as lines of text; "" where it is empty."""
    def autotune_read(self, text: str, /) -> None:
        """Takes such lines over: what they name is not measured again."""

@final
class Resident:
    """A copy of an array in a device's memory, for the datasets of any plans there."""

    def __new__(cls, device: Device, array: npt.NDArray[Any], /) -> Self: ...

@final
class Session:
    """A model's memory on a device: persistent stores and the arena its plans share."""

    def __new__(cls, device: Device, /) -> Self: ...
    def store(self, name: str, dtype: str, n: int, /) -> None: ...
    def stores(self) -> dict[str, tuple[str, int]]: ...
    def write(self, name: str, array: npt.NDArray[Any], first: int = 0, /) -> None:
        """Flattens and converts an array into elements first, first + 1, ... of a store."""
    def read(self, name: str, dtype: str, first: int = 0, n: int = -1, /) -> npt.NDArray[Any]: ...
    def copy(self, dst: str, src: str, /) -> None: ...
    def control(self) -> dict[str, Any]:
        """The control block now (csrc/backend/control.h).

        Numbers by name: attempted, applied, skipped, skipped_in_row, micro_row, n_micro, apply,
        window_ok, stopped, stopped_at, loss, grad_norm, lr, clip, loss_scale, good_steps, scaling,
        n_ring.
        nan_mode is "stop" or "skip"; factor and scalars are lists by scalar number.
        """
    def snapshot(self) -> dict[str, Any]:
        """The control block as it was last polled, without waiting.

        On an asynchronous device as it was some steps back; all 0 before the first run.
        """
    def control_set(self, **fields: Any) -> None:
        """Sets fields, all or none; a factor list may be shorter.

        micro_row, n_micro, apply, window_ok, n_ring and scalars cannot be set.
        """
    def control_log(self, since: int, /) -> list[tuple[int, float, float, float, bool]]:
        """(step, loss, grad_norm, lr, applied) of the ring's entries from number `since` on."""
    def close(self) -> None:
        """Gives its memory back now. BusyError while a plan of it is open."""

@final
class Feed:
    """Order of samples, in whole batches; see csrc/data/feed.h.

    Positions first to first + count (-1: to the end) of an epoch's order; a rest of less than a
    batch is not served. rows: row numbers of the n samples; they are copied. Stands at batch 0 of
    epoch 0. A feed belongs to at most one plan. n_threads gather batches ahead for a plan that is
    fed; n_slots: batches under way, as many as the plan has at most. With weights, one for each of
    the n samples, an epoch has n_draws samples (-1: n), drawn with replacement as often as their
    weights say. peers: the rows of the split, ascending, among which the Source that fills batches
    looks for what stands in the place of a bad one; None: all of its rows. It is used in place.
    """

    def __new__(
        cls,
        n: int,
        batch: int,
        *,
        rows: npt.NDArray[np.int64] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        first: int = 0,
        count: int = -1,
        n_threads: int = 0,
        n_slots: int = 1,
        is_training: bool = False,
        weights: npt.NDArray[np.float64] | None = None,
        n_draws: int = -1,
        peers: npt.NDArray[np.int64] | None = None,
    ) -> Self: ...
    @property
    def n_slots(self) -> int: ...
    @property
    def waited(self) -> float:
        """Seconds for which batches that were to be filled were waited for."""
    def seek(self, epoch: int, batch: int = 0, /) -> None: ...
    def next_rows(self) -> npt.NDArray[np.int64] | None:
        """Row numbers of the next batch, or None at the end of the epoch.

        ConfigError while a plan has the feed.
        """

@final
class Source:
    """n rows that are made when a batch needs them; see csrc/data/source.h.

    function(rows, epoch, is_training, peers) gives an array (len(rows), ...) for each of the types,
    (dtype, shape) of a row. It runs on the threads of feeds; what it raises becomes its error.
    peers: the rows of the split that the batch is of, ascending; None: all.
    """

    def __new__(
        cls,
        n: int,
        types: Sequence[tuple[str, Sequence[int]]],
        function: Callable[
            [npt.NDArray[np.int64], int, bool, npt.NDArray[np.int64] | None],
            Sequence[npt.NDArray[Any] | None],
        ],
        /,
    ) -> Self: ...
    def read(
        self,
        rows: npt.NDArray[np.int64],
        epoch: int = 0,
        is_training: bool = False,
        peers: npt.NDArray[np.int64] | None = None,
        /,
    ) -> tuple[npt.NDArray[Any], ...]:
        """The fields of these rows, as a batch of the split whose rows are peers has them."""

def gather_rows(
    array: npt.NDArray[Any], rows: npt.NDArray[np.int64], dtype: str, window: int = 0, /
) -> npt.NDArray[Any]:
    """array[rows] as dtype, by the kernel that training uses, without the GIL; with window, the
    so many rows from each on."""

@final
class Plan:
    """A graph bound to a session. Raises BusyError when another thread runs the session."""

    def __new__(
        cls,
        session: Session,
        graph: Graph,
        *,
        n_slots: int = 1,
        k: int = 1,
        fuse: bool = True,
        chain: bool = True,
        compute_dtype: str = "float32",
        capture: bool = True,
        fed: bool = False,
        deterministic: bool = False,
        benchmark: bool = False,
        overlap: bool = True,
        recompute: float = 0.0,
    ) -> Self:
        """The graph is copied.

        capture: an asynchronous device replays what a step launches. fed: datasets stay on the
        host, where batches are gathered. deterministic: the same bits every run, or DeviceError.
        benchmark: kernels may be autotuned, before the first step. overlap: on a GPU weight
        gradients may run beside the rest of the backward pass. recompute: the share of
        "n_recompute_choices" by which values are computed again in the backward pass.
        """
    def dataset(
        self, index: int, array: npt.NDArray[Any] | Resident | Source, field: int = 0, /
    ) -> None:
        """Data to gather from; kept. An array is copied only to a device of other memory. Of a
        streamed dataset the source, and which of its fields the dataset is.
        """
    def feed(self, feed: Feed | None, /) -> None:
        """Where batches come from: row numbers for input 0 (int64). None: input() fills slot 0."""
    def input(self, index: int, array: npt.NDArray[Any], /) -> None:
        """Copies an array into an input, converting; no floats into integers.

        It is there until another plan of the session runs or gets an input.
        """
    def output(self, index: int, dtype: str | None = None, /) -> npt.NDArray[Any]:
        """A copy of an output after a run.

        dtype None: what it was computed in (float64 on a float64 device), bfloat16 as float32.
        """
    def run(self, n_steps: int = 1, seconds: float = 0.05, /) -> tuple[str, int]:
        """("done" | "deadline" | "asked" | "stopped" | "feed_end", steps run). Releases the GIL.

        Runs signal handlers once at its end; what one raises is raised here.
        """
    def stop(self) -> None:
        """Makes a run in another thread, else the next one, return "asked" at a barrier."""
    def abandon(self) -> None: ...
    @property
    def unfinished(self) -> bool:
        """Whether a step was left in the middle (by a deadline or a stop)."""
    @property
    def k(self) -> int: ...
    @k.setter
    def k(self, value: int) -> None: ...
    def info(self) -> dict[str, Any]:
        """Bytes of the device and counts, in integers by name, and flops of a step.

        arena_bytes, slot_bytes, staging_bytes (of the host), const_bytes, store_bytes (the
        session's), n_nodes, n_instructions, n_chains, n_regions, n_kernels (launches),
        n_path_kernels (of which so many wait for one another), n_to_autotune (instructions that are
        autotuned before the first step), flops, large_flops, path_flops (of the chain of launches
        that has the most).
        """
    def profile(self) -> tuple[float, list[dict[str, Any]]]:
        """Times a step on the last run's batch: its seconds, and its launches in their order.

        op, kernel, algorithm (what the kernel chose, or ""), scope (the module, or None), segment
        ("begin", "micro", "apply"), n_nodes, n_runs (launches in a step), precision (of a product,
        else None), seconds, flops, bytes. Parameters and state stay as they are; outputs are gone.
        Releases the GIL. ConfigError before a run, NotFiniteError when steps are not applied.
        """
    def close(self) -> None:
        """Gives its memory back now, datasets and feed included."""
    def __str__(self) -> str: ...

def write_file(path: str, parts: Sequence[Any], /) -> None:
    """Atomic file writer: the buffers one after another; CheckpointError leaves the old file as it
    was.
    """

@final
class Runner:
    """A run over plans of one session: an epoch of full batches and a smaller last one, say.

    order: (plan, n) in turn, n of the plan's batches each. k consecutive batches of the order, of
    whichever plans, are a step; an epoch's last step may have fewer. All plans train or none does.
    """

    def __new__(cls, order: Sequence[tuple[Plan, int]], k: int = 1) -> Self: ...
    def run(self, n_steps: int = 1, seconds: float = 0.05, /) -> tuple[str, int, int]:
        """As Plan.run, and the batches of the steps that were run; "feed_end": of the order."""
    def check(self, step: int, everything: bool = False, /) -> dict[str, Any] | None:
        """Runs the next step as attempted step `step`, node by node; what of it is not finite.

        All stores are put back; the position in the order has moved on. None: all is finite.
        Else what ("loss", "gradient", "norm", or "value": a NaN that comes to neither, which
        everything asks for), param (of a gradient the number of the parameter), micro (the
        micro-batch of the step), first: where it began, and nan: the node that made NaN of an
        infinite first, or None. Both are dicts of kind ("result", "batch", "parameter", "state",
        "input", "scalar", "constant"), op, scope, name, gradient_of (in the backward pass the op
        whose gradient it is part of, or "parameter"; else None), is_update (of the optimizer),
        reads_infinity (some operands of the node are infinite, and none is NaN), dtype, shape,
        n_nan, n_infinite, first (the first such element), row (of a batch, its row of the data,
        or -1).
        """
    def seek(
        self, epoch: int, batch: int = 0, order: Sequence[tuple[int, int]] | None = None, /
    ) -> None:
        """Goes to a batch of an epoch, with all feeds; forgets a step left in the middle.

        order: (i, n) in turn, n batches each of the plan of entry i of the runner's first order.
        It stays until another is given.
        """
    def stop(self) -> None:
        """Makes a run in another thread, else the next one, return "asked" at a barrier."""
    def abandon(self) -> None: ...
    @property
    def unfinished(self) -> bool:
        """Whether a step was left in the middle (by a deadline or a stop)."""
    def close(self) -> None:
        """Lets its plans go."""

def predict(
    device: Device,
    graph: Graph,
    *,
    n_slots: int = 1,
    k: int = 1,
    fuse: bool = True,
    chain: bool = True,
    compute_dtype: str = "float32",
    capture: bool = True,
    fed: bool = False,
    deterministic: bool = False,
    benchmark: bool = False,
    overlap: bool = True,
    recompute: float = 0.0,
) -> dict[str, Any]:
    """Plan.info() of the plan that a new session would make, and "text", str() of it.

    No memory of the device is taken.
    """
