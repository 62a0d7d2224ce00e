"""The header of a run: what was chosen, before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from hotloop import _core
from hotloop.base.messages import counted, format_bytes, format_count, format_seconds, named
from hotloop.base.rules import warmup_amount
from hotloop.data.described import name_shape
from hotloop.data.module import DataModule
from hotloop.data.split import Split
from hotloop.training.config import TrainingConfig
from hotloop.training.config.parts import EMAConfig, SWAConfig
from hotloop.training.config.schedule import SWA_SHARE
from hotloop.training.config.schema import listed_loggers
from hotloop.training.plans.accelerator import library_roots, name_device
from hotloop.training.plans.layers import describe_layers
from hotloop.training.plans.precision import describe
from hotloop.training.plans.steps import Steps
from hotloop.training.run.planner import Planner
from hotloop.training.scoring.functions import describe_functions

__all__ = ["describe_fitted", "describe_run", "header_lines", "start_lines"]

_COLUMNS = 100


def describe_run(planner: Planner, output: str, resumed: str = "") -> str:
    """The header's lines.

    Parameters
    ----------
    planner : Planner
        After ``prepare``.
    output : str
        Where the run's folder is or will be; "" where there is none.
    resumed : str
        What the run goes on from; "": it begins.

    Returns
    -------
    str
    """
    config, data, runtime = planner.config, planner.data, planner.runtime
    first = start_lines(planner) if config.verbose == "lines" else []
    train, val = data.split("train"), data.split("val")
    assert train is not None  # DataModule always has training rows
    optimizer = config.optimizer_config
    decay = f" wd {optimizer.weight_decay:g}" if optimizer.weight_decay else ""
    if decay and not config.decay_norm_and_bias:
        decay += " (not on norms and biases)"
    rows = f"{format_count(train.n)}" + (f" + {format_count(val.n)} val" if val else "")
    home = ""
    if runtime.has_own_memory:
        home = ", fed from the CPU" if runtime.is_fed else ", in the GPU's memory"
    if train.is_streamed:
        home = f", made by {counted(data.num_workers, 'thread')}" if data.num_workers else ""
    auto = data.auto_workers
    loader = []
    if auto is not None and auto.words:
        home, loader = "", [("loader", f"{counted(auto.threads, 'thread')} ({auto.words})")]
    parts = f" in micro-batches of {planner.micro_rows}" if planner.micro_rows else ""
    clip = config.gradient_clip_val
    by_time = "" if config.max_time is None else " (by time where max_time comes before max_epochs)"
    fitted = planner.fitting.variables if planner.fitting is not None else ()
    known = frozenset(map(id, fitted))
    initial = all(p.is_initial or id(p) in known for p in planner.model.parameters())
    again = "" if initial else "continues from its weights"
    facts = [("", name_device(planner.device))]
    if planner.why_no_gpu:
        facts.append(("no GPU", planner.why_no_gpu))
    facts.append(("precision", describe(planner.device, runtime.compute_dtype)))
    if runtime.has_own_memory:
        one_by_one = config.cuda_graph is False
        facts.append(("steps", "launched one by one" if one_by_one else "as CUDA graphs"))
    by = config.layer_decay or 1.0
    is_weighted = any(field.name == "weight" for field in train.fields)
    functions = ", ".join(
        described
        for task in planner.steps.tasks
        for described in describe_functions(
            task.metrics, task.kind, task.name, weighted=is_weighted
        )
    )
    facts += [
        ("model", f"{format_count(runtime.n_trainable)} parameters {again}".strip()),
        ("data", f"{rows} {_name_rows(train)}{home}, batch {data.batch_size}{parts}"),
        *loader,
        *data.facts,
        *([("statistics", _describe_fitting(planner))] if planner.fitting is not None else []),
        *([("images", "bytes as float32, 0 to 255")] if _has_images_of_bytes(data, train) else []),
        ("loss", _describe_loss(planner.steps)),
        *([("metrics", functions)] if functions else []),
        ("optimizer", f"{optimizer.name} lr {config.lr:g}{decay}"),
        *([("trained", planner.phases.describe())] if planner.phases.describe() else []),
        *([("groups", _describe_groups(planner))] if config.param_groups else []),
        *([("layers", describe_layers(planner.model, by, config.lr))] if by < 1 else []),
        ("schedule", config.scheduler_config.name + by_time + _describe_warmup(config)),
        *([("ema", f"{config.ema.decay:g}")] if isinstance(config.ema, EMAConfig) else []),
        *([("swa", _describe_swa(planner))] if config.swa else []),
        ("clip", f"{clip:g} {config.gradient_clip_algorithm}" if clip else "off"),
        *([("anomalies", "each step is looked into")] if config.detect_anomaly else []),
        ("memory", _describe_memory(planner)),
        *([("recompute", planner.recomputed)] if planner.recomputed else []),
    ]
    if config.seed != 42:
        facts.append(("seed", str(config.seed)))
    if output:
        facts.append(("output", output))
    if resumed:
        facts.insert(0, ("resumed from", resumed))
    if config.accumulate_grad_batches > 1:
        facts.append(("accumulate", str(config.accumulate_grad_batches)))
    loggers = listed_loggers(config.logger)
    if loggers not in ((), ("auto",), ("csv",)):
        named = (one if isinstance(one, str) else type(one).__name__ for one in loggers)
        facts.append(("loggers", ", ".join(named)))
    return "\n".join([*first, header_lines(facts)])


def start_lines(planner: Planner) -> list[str]:
    """What other trainers' log files begin with: device, mixed precision, cuDNN, memory, versions.

    Parameters
    ----------
    planner : Planner
        After ``prepare``.
    """
    config, memory = planner.config, planner.device.memory()
    devices = config.devices
    number = devices[0] if isinstance(devices, tuple) else 0
    is_mixed = planner.runtime.compute_dtype in ("float16", "bfloat16")
    amp = "Mixed precision training (AMP)"
    lines = [
        f"Using device: {'cpu' if memory is None else f'cuda:{number}'}",
        f"✓ {amp} enabled" if is_mixed else f"{amp} disabled",
    ]
    if memory is None:
        return lines
    libraries = _core.survey("cuda", library_roots())["libraries"]
    found = {library["name"]: library["version"] for library in libraries}
    lines += [
        _describe_benchmark(planner, has_cudnn=bool(found["cuDNN"])),
        f"✓ CUDA Memory: {memory['total_bytes'] / 1e9:.2f} GB",
    ]
    lines += [
        f"{name} version: {found[library] or 'none'}"
        for name, library in (("CUDA", "CUDA driver"), ("cuDNN", "cuDNN"))
    ]
    return lines


def _describe_benchmark(planner: Planner, *, has_cudnn: bool) -> str:
    """Whether cuDNN's algorithms are timed; where they were to be and are not, why."""
    benchmark = "cuDNN benchmark mode"
    if planner.runtime.benchmarks and has_cudnn:
        return f"✓ {benchmark} enabled"
    if not planner.config.benchmark:
        return f"{benchmark} disabled"
    return f"{benchmark} disabled ({'no cuDNN' if planner.runtime.benchmarks else 'deterministic'})"


def _describe_fitting(planner: Planner) -> str:
    """Which nodes were fitted, by how many passes over the data, and where.

    Parameters
    ----------
    planner : Planner
        That has fitted some.
    """
    fitting = planner.fitting
    assert fitting is not None
    train = planner.data.split("train")
    assert train is not None
    share = f", {fitting.share:.2g} of their pixels by the mask," if fitting.share < 1 else ""
    return (
        f"{named(fitting.names)} by {counted(fitting.n_passes, 'pass', 'passes')} over "
        f"{format_count(train.n)} rows{share} on {' and '.join(fitting.places)}, "
        f"{format_seconds(fitting.seconds)}"
    )


def describe_fitted(planner: Planner) -> str:
    """What was fitted where nothing is trained; of nodes that were fitted before, that they were.

    Parameters
    ----------
    planner : Planner
    """
    if planner.fitting is not None:
        return f"fitted {_describe_fitting(planner)}"
    return "nothing is left to fit; model.reset() forgets what was"


def _describe_memory(planner: Planner) -> str:
    """The peak, and what it was to be."""
    limit = planner.config.memory_limit
    of = f" of {format_bytes(limit)}" if limit is not None else ""
    return f"{format_bytes(planner.predicted_bytes)}{of}"


def _name_rows(split: Split) -> str:
    """What the rows of the data are; of samples of several shapes the buckets too."""
    if not split.buckets:
        return "rows"
    what = "images" if split.fields[0].padding is None else "sequences"
    return f"{what} in buckets of {', '.join(map(name_shape, split.parts[::-1]))}"


def _has_images_of_bytes(data: DataModule, split: Split) -> bool:
    """Whether inputs are images of uint8, which enter forward as floats of the same values."""
    changed = {name for _, fitted in data.transforms for name in fitted}
    return any(
        field.name not in changed
        and field.name.startswith("x")
        and field.array.dtype == "uint8"
        and field.array.ndim > 3
        for field in split.fields
    )


def _describe_loss(steps: Steps) -> str:
    """Which loss is trained, and what is summed in it."""
    of = " of standardised y" if steps.target_scale else ""
    if steps.loss is not None:
        weights = steps.config.class_weight
        named = weights if isinstance(weights, str) else "as given"
        return steps.loss.name + of + (f", class_weight {named}" if weights is not None else "")
    if len(steps.loss_names) > 1:
        return f"{' + '.join(steps.loss_names)} (training_step{of}, summed)"
    logged = f" (logs {', '.join(steps.logged_names)})" if steps.logged_names else ""
    return f"training_step{of}{logged}"


def _describe_swa(planner: Planner) -> str:
    """From which epoch on weights are averaged, and at which rate."""
    swa, lr = planner.config.swa, planner.config.lr
    assert isinstance(swa, SWAConfig)  # it is asked for
    start = f"epoch {swa.start}" if isinstance(swa.start, int) else f"{swa.start:.0%} of the epochs"
    return f"from {start} on, lr {lr * SWA_SHARE if swa.lr is None else swa.lr:g}"


def _describe_warmup(config: TrainingConfig) -> str:
    """With the steps, the share or the epochs of it."""
    amount, unit = warmup_amount(config.scheduler_config.warmup or 0)
    if not amount:
        return ""
    of = {"steps": "steps", "ratio": "of the steps", "epochs": "epochs"}[unit]
    return f", warmup {amount:.0%} {of}" if unit == "ratio" else f", warmup {amount:g} {of}"


def _describe_groups(planner: Planner) -> str:
    """What each parameter group sets, and for how many tensors."""
    groups = planner.config.param_groups or ()
    names = planner.phases.names()
    first = [next((i for i, g in enumerate(groups) if g.covers(name)), -1) for name in names]
    described = []
    for i, group in enumerate(groups):
        lr = group.lr
        if group.lr_scale is not None:
            lr = group.lr_scale * planner.config.lr
        settings = "" if lr is None else f" lr {lr:g}"
        if group.weight_decay is not None:
            settings += f" wd {group.weight_decay:g}"
        described.append(
            f"{', '.join(group.params)}:{settings} ({counted(first.count(i), 'tensor')})"
        )
    return "; ".join(described)


def header_lines(facts: Sequence[tuple[str, str]]) -> str:
    """``name value`` pairs, separated by " | ", in lines of at most 100 columns."""
    lines = ["hotloop:"]
    for i, (name, value) in enumerate(facts):
        fact = f"{name} {value}".strip() + (" |" if i + 1 < len(facts) else "")
        if len(lines[-1]) + 1 + len(fact) > _COLUMNS:
            lines.append("        ")
        lines[-1] += " " + fact
    return "\n".join(lines)
