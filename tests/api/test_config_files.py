"""A configuration as TOML and as a dict: what is written is what is read, and what cannot be."""

from __future__ import annotations

import dataclasses
import pathlib
import pickle
from typing import Any

import pytest
from hotloop.errors import ConfigError
from hotloop.training.config import (
    EarlyStopping,
    OptimizerConfig,
    ParamGroup,
    SchedulerConfig,
    TrainingConfig,
)
from hotloop.training.config.parts import OPTIMIZERS
from hypothesis import given, settings
from hypothesis import strategies as st


def function(*_: Any) -> None:
    """A loss, metric or callback."""


plain_text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1
).filter(str.strip)
positive = st.floats(1e-300, 1e300)
groups = st.builds(
    ParamGroup,
    st.lists(plain_text, min_size=1, max_size=3),
    lr_scale=st.one_of(st.none(), positive),
    weight_decay=positive,
)
label = st.one_of(st.integers(-(2**63), 2**63 - 1), plain_text)
random_options = st.fixed_dictionaries(
    {},
    optional={
        "max_epochs": st.integers(0, 2**63 - 1),
        "max_time": st.one_of(st.none(), positive),
        "optimizer": st.one_of(
            st.sampled_from([*OPTIMIZERS]),
            st.builds(OptimizerConfig, st.just("rmsprop"), eps=positive, centered=st.booleans()),
        ),
        "lr": positive,
        "scheduler": st.one_of(
            st.sampled_from(["constant", "plateau"]),
            st.builds(
                SchedulerConfig,
                st.just("multistep"),
                milestones=st.lists(st.integers(1, 99), min_size=1).map(sorted),
            ),
        ),
        "warmup": st.one_of(st.integers(0, 9), st.floats(0, 0.9), st.just("2 epochs")),
        "loss": st.one_of(plain_text, st.dictionaries(plain_text, plain_text, min_size=1)),
        "metrics": st.one_of(st.lists(plain_text), st.dictionaries(plain_text, plain_text)),
        "class_weight": st.one_of(
            st.none(),
            st.just("balanced"),
            st.lists(positive, min_size=1),
            st.dictionaries(label, positive, min_size=1),
        ),
        "devices": st.sampled_from(["auto", 1, [4]]),
        "seed": st.integers(0, 2**63 - 1),
        "gradient_clip_val": st.one_of(st.none(), positive),
        "param_groups": st.one_of(st.none(), st.lists(groups, max_size=3)),
        "layer_decay": st.one_of(st.none(), st.floats(0.01, 1.0)),
        "freeze": st.one_of(st.none(), st.lists(plain_text, min_size=1)),
        "ema": st.one_of(st.booleans(), st.floats(0.01, 0.99)),
        "early_stopping": st.one_of(
            st.none(), st.builds(EarlyStopping, st.integers(1, 9), monitor=plain_text)
        ),
        "monitor": plain_text,
        "output_dir": plain_text,
        "limit_batches": st.sampled_from([None, 1, 1.0, 0.5]),
        "logger": st.sampled_from(["auto", "csv", None]),
        "benchmark": st.booleans(),
    },
)


@settings(max_examples=300, deadline=None)
@given(random_options)
def test_round_trips(options: dict[str, Any]) -> None:
    config = TrainingConfig(**options)
    text = config.to_toml()
    again = TrainingConfig.from_toml(text)
    assert again == config
    assert again.to_toml() == text
    assert TrainingConfig.from_dict(config.to_dict()) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(again) == hash(config)


@settings(max_examples=200, deadline=None)
@given(random_options, random_options)
def test_replace_is_what_diff_says(a: dict[str, Any], b: dict[str, Any]) -> None:
    first, second = TrainingConfig(**a), TrainingConfig(**b)
    changed = {field: theirs for field, (_, theirs) in first.diff(second).items()}
    assert first.replace(**changed) == second


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(TrainingConfig)])
def test_none_is_read_as_none(field: str) -> None:
    try:
        config = TrainingConfig(**{field: None})
    except ConfigError:
        return  # a field that must have a value
    again = TrainingConfig.from_toml(config.to_toml())
    assert getattr(again, field) == getattr(config, field)
    assert again == config


def test_toml_files(tmp_path: pathlib.Path) -> None:
    config = TrainingConfig(lr=0.5, output_dir='a "quoted"\\ \x7f name\n')
    path = tmp_path / "lr=0.5.toml"
    text = config.to_toml(path)
    assert path.read_text(encoding="utf-8") == text
    assert TrainingConfig.from_toml(path) == TrainingConfig.from_toml(str(path)) == config
    assert TrainingConfig.resolve(path, {"lr": 1}).lr == 1.0
    other = tmp_path / "no suffix"
    other.write_text("epochs = 3\n[optimizer]\nname = 'adam'\nlr = 0.1\n", encoding="utf-8")
    assert TrainingConfig.from_toml(str(other)) == TrainingConfig(
        max_epochs=3, optimizer="adam", lr=0.1
    )
    assert TrainingConfig.from_toml("") == TrainingConfig()
    assert TrainingConfig.from_toml("[trainer]\nmax_epochs = 3").max_epochs == 3
    assert TrainingConfig.from_toml("logger = false").logger is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = ", "from_toml: must be TOML, got: "),
        ("lr = 1\nlr = 2\n", "from_toml: must be TOML, got: "),
        ("nowhere.toml", "from_toml: the file must be readable, got: .*nowhere.toml"),
        ("lr = -1", "lr: must be greater than 0, got -1"),
        ("lr = '1e-3'", "lr: a number is needed, not a string"),
        ("max_epochs = 1979-05-27", "max_epochs: a whole number is needed"),
    ],
)
def test_bad_toml(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig.from_toml(text)


def test_toml_of_objects() -> None:
    config = TrainingConfig(loss=function, callbacks=[function], lr=0.5)
    with pytest.raises(ConfigError, match=r"^loss: only names, numbers and texts can be written"):
        config.to_toml()
    text = config.to_toml(strict=False)
    assert "# loss is an object of Python and not written: " in text
    assert TrainingConfig.from_toml(text) == TrainingConfig(lr=0.5)
    with pytest.raises(ConfigError, match="must be valid Unicode"):
        TrainingConfig(output_dir="\ud800").to_toml()


def test_from_dict_needs_a_dict() -> None:
    with pytest.raises(ConfigError, match=r"from_dict: a dict is needed, got \[1\]"):
        TrainingConfig.from_dict([1])  # type: ignore[arg-type]
