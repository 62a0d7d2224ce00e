"""The site's pages: what is public has a place, links lead somewhere, tables are complete."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from hotloop import nn
from hotloop.data import augment
from hotloop.data.module import DataModule
from hotloop.training.config.parts import OPTIMIZERS, SCHEDULERS
from hotloop.training.config.schema import LOGGERS
from hotloop.training.scoring.catalogue import METRICS
from hotloop.training.scoring.losses import LOSSES

ROOT = Path(__file__).resolve().parents[2]


def load_site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    return site


SITE = load_site()
PAGES = SITE.made_pages()


@pytest.mark.parametrize(
    "where", ["hotloop", "hotloop.nn", "hotloop.nn.functional", "hotloop.nn.init", "hotloop.errors"]
)
def test_what_is_public_is_in_the_reference(where: str) -> None:
    module = importlib.import_module(where)
    root = "hotloop" if where == "hotloop.errors" else where
    reference = "\n".join(PAGES.values())
    listed = re.findall(r"^::: (\S+)$", reference, re.MULTILINE)
    missing = {f"{root}.{name}" for name in SITE.public_names(module)} - set(listed)
    assert not missing, f"give them a place in docs/site.py: {sorted(missing)}"
    assert len(listed) == len(set(listed))


def test_links_lead_to_pages() -> None:
    for page, text in PAGES.items():
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(((?!https?:)[^)#\s]+)", prose):
            assert target in PAGES, f"{page}: {target} is no page of the site"


def test_links_of_the_repository_become_those_of_the_site() -> None:
    assert SITE.relink("[a](docs/gpu.md#x) [b](../CONTRIBUTING.md) [c](https://e.org/docs/x)") == (
        "[a](gpu.md#x) [b](contributing.md) [c](https://e.org/docs/x)"
    )


def test_names_become_links() -> None:
    public = {"hotloop.train", "hotloop.nn.Linear"}
    text = "`hl.train` `nn.Linear(3, 2)` `hl.other` [`hl.train`](x)\n```python\n`hl.train`\n```\n"
    assert SITE.link_names(text, public) == (
        "[`hl.train`][hotloop.train] [`nn.Linear(3, 2)`][hotloop.nn.Linear] `hl.other` "
        "[`hl.train`](x)\n```python\n`hl.train`\n```\n"
    )


def test_pages_say_for_whom_they_are() -> None:
    for page, text in PAGES.items():
        if page != "index.md":
            first = text.partition("\n\n")[2]
            assert first.startswith("For "), f"{page}: its first line does not say for whom it is"


def readme_table() -> dict[str, list[str]]:
    """Names by kind, of the README's table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## What there is")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = [line.split("|")[-3:-1] for line in table.splitlines()[2:]]
    return {kind.partition(",")[0].strip(): re.findall(r"`(\w+)`", names) for kind, names in rows}


def test_readme_lists_what_there_is() -> None:
    table = readme_table()
    registries = {
        "losses by name": LOSSES,
        "metrics": METRICS,
        "optimizers": OPTIMIZERS,
        "schedules": SCHEDULERS,
        "loggers": LOGGERS,
        "data": [name for name in dir(DataModule) if name.startswith("from_")],
        "augmentation": [n for n in augment.__all__ if inspect.isclass(getattr(augment, n))],
    }
    for kind, registry in registries.items():
        assert sorted(table.pop(kind)) == sorted(registry), kind
    layers = [name for names in table.values() for name in names]
    assert sorted(layers) == sorted(n for n in nn.__all__ if inspect.isclass(getattr(nn, n)))
