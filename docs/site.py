"""The pages of the documentation's site: docs/*.md, README.md, CONTRIBUTING.md, examples/, and a
reference with a directive (``::: hotloop.train``) for all that is public.

python docs/site.py FOLDER writes them; `make docs` lets MkDocs build them (mkdocs.yml). They are
plain files before MkDocs sees them, so another generator can take its place. The lists here are in
reading order; tests/docs holds them to what is public.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

# Pages of the reference: title, what it is, and names of `hotloop` (or of classes that its
# functions return) by heading. Functions over tensors and the rest of `hotloop.nn` follow by the
# module that defines them.
_PAGES: dict[str, tuple[str, str, dict[str, list[str]]]] = {
    "training": (
        "Training",
        "For everyone: from a model and data to a result, and what can be asked before and after.",
        {
            "Train and use a model": ["train", "predict", "evaluate", "generate"],
            "Files": ["save", "load", "read_weights"],
            "Results": ["TrainResult", "History", "LoadedModel"],
            "Cross-validation": ["cross_validate", "CrossValidation"],
            "A loop of your own": ["stepper", "Stepper"],
            "A metric of your own": ["metric"],
            "Before and after": [
                *("plan", "PlanReport", "find_batch_size", "profile", "Profile", "NodeTime"),
            ],
            "The machine": [
                *("devices", "Devices", "DeviceInfo", "LibraryInfo"),
                *("doctor", "Doctor", "empty_cache"),
            ],
        },
    ),
    "configuration": (
        "Configuration",
        "For anyone who changes how training runs: every setting with its values and default. Any "
        "field of `TrainingConfig` is also a keyword of `train`, `plan`, `profile` and `stepper`.",
        {
            "Settings": ["TrainingConfig"],
            "Parts of it": [
                *("TrainerConfig", "OptimizerConfig", "SchedulerConfig", "EarlyStopping"),
                *("EMAConfig", "SWAConfig", "ParamGroup"),
            ],
            "Callbacks": ["LambdaCallback", "ModelCheckpoint", "LearningRateMonitor"],
        },
    ),
    "data": (
        "Data",
        "For everyone: arrays, tables, datasets and files as training, validation and test data.",
        {
            "Data": ["DataModule", "GraphDataModule", "load_digits"],
            "Before training": ["parallel_map", "bench_data", "LoadingRates"],
            "Texts": ["Vocabulary"],
        },
    ),
    "augmentation": (
        "Augmentation",
        "For anyone whose training data is images or series: steps for `augment=[...]` where a "
        "DataModule is made of them, as `hl.augment.RandomCrop()`. Names and arguments of those "
        "for images are torchvision's.",
        {
            "Images": [
                *("Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop"),
                *("RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotation", "RandomAffine"),
                *("RandomPerspective", "ColorJitter", "RandomGrayscale", "GaussianBlur"),
                *("GaussianNoise", "RandomErasing", "TrivialAugmentWide", "RandAugment"),
            ],
            "Series": ["Jitter", "Scaling", "TimeMask"],
        },
    ),
    "errors": (
        "Errors",
        "For anyone who catches them: errors that hotloop raises on purpose, and its warnings.",
        {
            "Errors": [
                *("HotloopError", "ConfigError", "ShapeError", "DataError", "TraceError"),
                *("NotFiniteError", "OutOfMemoryError", "TrainingInterrupted", "CheckpointError"),
                *("BusyError", "DeviceError", "DeviceLostError"),
            ],
            "Warnings": [
                "HotloopWarning",
                "CheckpointWarning",
                "DataWarning",
                "ModelWarning",
                "NotFiniteWarning",
            ],
        },
    ),
}
# Pages by family: title, what it is, the module, and names that come first, apart.
_FAMILIES: dict[str, tuple[str, str, str, list[str]]] = {
    "nn": (
        "Layers and losses",
        "For anyone who writes a model: `from hotloop import nn`. Names, arguments, defaults, "
        "initial values and `state_dict` keys are those of `torch.nn`.",
        "hotloop.nn",
        ["Module", "Parameter", "Buffer"],
    ),
    "functional": (
        "Functions of layers",
        "For anyone who writes a model: `import hotloop.nn.functional as F`. They take tensors "
        "inside `forward`; names, arguments and formulas are those of `torch.nn.functional`.",
        "hotloop.nn.functional",
        [],
    ),
    "init": (
        "Initialisation",
        "For anyone who sets initial weights: `nn.init.kaiming_normal_(layer.weight)`.",
        "hotloop.nn.init",
        [],
    ),
    "packing": (
        "Packed sequences",
        "For anyone whose sequences differ in length: `from hotloop.nn.utils.rnn import "
        "pack_padded_sequence`. Names and arguments are those of `torch.nn.utils.rnn`.",
        "hotloop.nn.utils.rnn",
        [],
    ),
    "models": (
        "Models",
        "For anyone who starts from a known model: `from hotloop import models`. `weights=` takes "
        "a local file of the origin's weights; nothing is downloaded.",
        "hotloop.models",
        [],
    ),
    "stats": (
        "Statistical nodes",
        "For anyone with hyperspectral cubes: `from hotloop import stats`. Normalizers, principal "
        "components and anomaly detectors that are fitted by one pass over the data before "
        "training, and losses and metrics that read modules by name.",
        "hotloop.stats",
        [],
    ),
    "tensors": (
        "Tensors",
        "For anyone who writes `forward`: `hl.` functions over tensors, most of them also methods "
        "of `Tensor`. Names, arguments and broadcasting are those of `torch`.",
        "hotloop.ops",
        [],
    ),
    "linalg": (
        "Linear algebra",
        "For anyone whose model solves systems: `hl.linalg.cholesky(A)`, in `forward` and on "
        "arrays. Names and arguments are those of `torch.linalg`.",
        "hotloop.linalg",
        [],
    ),
}
_HOW_TO_READ = (
    "In formulas x is `input`. A function of one tensor gives its shape; functions of several "
    "broadcast their shapes as NumPy does. Where the result is not an integer or a bool by its "
    "meaning, integers and bools are computed in float32."
)
# A part of what they have is of a base class.
_INHERITING = ("::: hotloop.Tensor\n", "::: hotloop.DataModule\n")
_ROOTS = {"hl": "hotloop", "nn": "hotloop.nn"}
_LINKS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/": "examples.md",
}


def public_names(module: ModuleType) -> list[str]:
    """The public callables of a module: of ``__all__``, or all where it is nothing but names."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    return [name for name in names if callable(getattr(module, name))]


def find_class(name: str) -> str:
    """The full name of a class by its own name, wherever in hotloop it is defined."""
    import hotloop

    for info in pkgutil.walk_packages(hotloop.__path__, "hotloop."):
        if not info.name.endswith("__main__"):
            found = getattr(importlib.import_module(info.name), name, None)
            if inspect.isclass(found) and found.__module__ == info.name:
                return f"{info.name}.{name}"
    raise LookupError(f"{name}: is no class of hotloop")


def _families(module: ModuleType, names: Iterable[str]) -> dict[str, list[str]]:
    """Names by what the docstring of the module that defines them begins with."""
    families: dict[str, list[str]] = {}
    for name in names:
        home = inspect.getmodule(getattr(module, name))
        assert home is not None
        title = re.split(r"[:;.](?= |$)", (home.__doc__ or "").partition("\n")[0])[0]
        families.setdefault(title, []).append(name)
    return families


def _page(title: str, about: str, groups: dict[str, list[str]]) -> str:
    lines = [f"# {title}", "", about, ""]
    for heading, paths in groups.items():
        lines += [f"## {heading}", "", *(line for path in paths for line in (f"::: {path}", ""))]
    return "\n".join(lines)


def reference_pages() -> dict[str, str]:
    """The pages of the reference by their paths below docs."""
    import hotloop

    pages: dict[str, str] = {}
    for name, (title, about, groups) in _PAGES.items():
        paths = {
            heading: [f"hotloop.{n}" if n in hotloop.__all__ else find_class(n) for n in names]
            for heading, names in groups.items()
        }
        pages[f"api/{name}.md"] = _page(title, about, paths)
    for name, (title, about, where, first) in _FAMILIES.items():
        module = importlib.import_module(where)
        names = [n for n in public_names(module) if n not in first]
        groups = {"What a model is made of": first} if first else {}
        groups |= dict(sorted(_families(module, names).items()))
        root = "hotloop" if where == "hotloop.ops" else where
        paths = {title: [f"{root}.{n}" for n in group] for title, group in groups.items()}
        if where == "hotloop.ops":
            about = f"{about}\n\n{_HOW_TO_READ}"
            paths = {"The class": ["hotloop.Tensor"], **paths}
        page = _page(title, about, paths)
        for block in _INHERITING:
            page = page.replace(block, f"{block}    options: {{inherited_members: true}}\n")
        pages[f"api/{name}.md"] = page
    return pages


def _examples_page() -> str:
    lines = ["# Examples", "", "For everyone: whole programs, most of which run in seconds.", ""]
    for path in sorted((ROOT / "examples").iterdir()):
        if path.is_dir():
            lines += _example_folder(path)
            continue
        text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".ipynb") else ""
        title = path.stem[3:].replace("_", " ").capitalize()
        if text:
            lines += [f"## {title}", "", f"`examples/{path.name}`", ""]
        if path.suffix == ".py":
            lines += ["```python", text.rstrip(), "```", ""]
        for cell in json.loads(text)["cells"] if path.suffix == ".ipynb" else ():
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                source = f"```python\n{source}\n```"
            lines += [re.sub(r"^# .*\n\n", "", source), ""]
    return "\n".join(lines)


def _example_folder(folder: Path) -> list[str]:
    """A folder of programs: its README a level down, without pictures."""
    page = folder / "README.md"
    if not page.is_file():
        return []
    parts = re.split(r"(^```.*?^```$)", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for i in range(0, len(parts), 2):  # those that are no code
        parts[i] = re.sub(r"^#", "##", parts[i], flags=re.M)
        parts[i] = re.sub(r"^!\[.*\]\(.*\)\n\n", "", parts[i], flags=re.M)
    return ["".join(parts)]


def relink(text: str) -> str:
    """Links between files of the repository as links between pages."""

    def target(match: re.Match[str]) -> str:
        path = match.group(1).removeprefix("../").removeprefix("docs/")
        return f"]({_LINKS.get(path, path)}{match.group(2) or ''})"

    return re.sub(r"\]\(((?!https?:)[^)#\s]+)(#[^)\s]*)?\)", target, text)


def link_names(text: str, public: set[str]) -> str:
    """Code such as `hl.train` or `nn.Linear(3, 2)` in a sentence as a link to the reference."""

    def link(match: re.Match[str]) -> str:
        code, root, name = match.groups()
        path = f"{_ROOTS[root]}.{name}"
        return f"[`{code}`][{path}]" if path in public else match.group()

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    name = r"(?<!\[)`((hl|nn)\.(\w+)(?:\([^`]*\))?)`"
    parts[::2] = [re.sub(name, link, part) for part in parts[::2]]
    return "".join(parts)


def made_pages() -> dict[str, str]:
    """Every page of the site by its path."""
    pages = reference_pages()
    public = set(re.findall(r"^::: (\S+)$", "\n".join(pages.values()), re.MULTILINE))
    pages["examples.md"] = _examples_page()
    for source in ("README.md", "CONTRIBUTING.md"):
        pages[_LINKS[source]] = (ROOT / source).read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        pages[path.name] = path.read_text(encoding="utf-8")
    return {path: link_names(relink(text), public) for path, text in pages.items()}


def write_pages(folder: Path) -> None:
    """Makes the folder anew with every page."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in made_pages().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for script in (ROOT / "docs").glob("*.js"):
        shutil.copy(script, folder)


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
