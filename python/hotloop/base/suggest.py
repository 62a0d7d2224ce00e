"""Finds the name that was probably meant by a misspelt one.

Two ways to be close count: equal once case and separators are ignored (``weightDecay`` and
``weight_decay``), or similar in difflib's measure. Nothing is suggested when nothing is close: a
wrong suggestion costs the reader more than none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = [
    "closest", "did_you_mean", "function_for", "missing_attribute", "name_missing", "not_here",
    "squeeze",
]  # fmt: skip

_CUTOFF = 0.7  # difflib's ratio; below it, unrelated short names begin to match each other


def squeeze(name: str) -> str:
    """The name in lower case without ``_``, ``-``, ``.`` and blanks."""
    return "".join(c for c in name.lower() if c not in "_-. ")


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``name`` probably stands for, or None.

    Parameters
    ----------
    name : str
        The name as it was written.
    candidates : iterable of str
        The names that exist; among equally close ones the first wins.

    Returns
    -------
    str or None
    """
    import difflib

    by_squeezed: dict[str, str] = {}
    for candidate in candidates:
        by_squeezed.setdefault(squeeze(candidate), candidate)
    found = difflib.get_close_matches(squeeze(name), by_squeezed, n=1, cutoff=_CUTOFF)
    return by_squeezed[found[0]] if found else None


_FUNCTIONS = {
    "fit": "hl.train(model, (X, y), lr=...)",
    "compile": "hl.train(model, data, TrainingConfig(optimizer=..., loss=..., metrics=...))",
    "predict": "hl.predict(model, X)",
    "predict_proba": "hl.predict(model, X, proba=True)",
    "predict_classes": "hl.predict(model, X, labels=True)",
    "decision_function": "hl.predict(model, X)",
    "evaluate": "hl.evaluate(model, (X, y))",
    "score": "hl.evaluate(model, (X, y))",
    "classes": "result.classes of what hl.train returned",
    "classes_": "result.classes of what hl.train returned",
    "summary": "print(model)",
    "device": "TrainingConfig(accelerator=...), and leave .to(device) out",
    "trainer": "callbacks, which get the run: TrainingConfig(callbacks=[...])",
    "current_epoch": "hl.scalar(name, schedule), a number that moves with the steps",
    "global_step": "hl.scalar(name, schedule), a number that moves with the steps",
    "save_hyperparameters": "nothing: result.config has the settings of the run",
    "save": "hl.save(model, path)",
    "load": "model.load_state_dict(hl.read_weights(path))",
}


def function_for(name: str) -> str:
    """The end of an error message about a method that is a function here, or an empty string.

    Parameters
    ----------
    name : str
        A method's name in scikit-learn or Keras.
    """
    return f"; write {_FUNCTIONS[name]}" if name in _FUNCTIONS else ""


_NOT_HERE = {
    "unique_consecutive": "unique is, with a size",
    "nanquantile": "quantile is, of what has no NaN",
    **dict.fromkeys(
        ("asin", "acos", "atan", "atan2", "arcsin", "arccos", "arctan", "arctan2", "angle"),
        "sin, cos and tan are, and inverses of them only NumPy's, outside of forward",
    ),
    **dict.fromkeys(
        ("cumprod", "logcumsumexp"), "cumsum is: exp(cumsum(log(x), dim)) of x above 0",
    ),
    **dict.fromkeys(("cummax", "cummin"), "amax and amin over a dim are"),
    "unfold": "F.unfold takes windows of images, and x[:, i:i + size] one window",
}  # fmt: skip


def not_here(name: str) -> str:
    """The end of an error message about a function of torch that this version lacks, or nothing.

    Parameters
    ----------
    name : str
        A function's or a tensor's method's name in torch.
    """
    return f": not in this version; {_NOT_HERE[name]}" if name in _NOT_HERE else ""


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """The end of an error message: ``"; did you mean 'lr'?"``, or an empty string."""
    found = closest(name, candidates)
    return f"; did you mean {found!r}?" if found is not None else ""


class _MissingAttribute:
    """Text that is made when it is read first: `hasattr`, and `getattr` with a default, ask for
    attributes that are not there by the hundred, and read nothing of the error."""

    def __init__(self, owner: Any, name: str) -> None:
        self._asked: tuple[Any, str] | None = (owner, name)
        self._text = ""

    def __str__(self) -> str:
        if self._asked is not None:
            owner, name = self._asked
            hint = function_for(name) or did_you_mean(name, dir(owner))
            self._text = f"{type(owner).__name__} has no attribute {name!r}{hint}"
            self._asked = None
        return self._text

    def __repr__(self) -> str:
        return repr(str(self))

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # its owner need not go to another process


def missing_attribute(owner: Any, name: str) -> AttributeError:
    """What ``__getattr__`` raises, with the name that was probably meant.

    Parameters
    ----------
    owner : object
        Whose attribute is missing.
    name : str
    """
    return AttributeError(_MissingAttribute(owner, name))


def name_missing(missing: Iterable[str], candidates: Iterable[str]) -> str:
    """What there is none of, each with the near one: ``"'agee' (did you mean 'age'?), 'size'"``."""
    known = list(candidates)
    named = []
    for name in missing:
        near = closest(name, known)
        named.append(repr(name) + (f" (did you mean {near!r}?)" if near else ""))
    return ", ".join(named)
