"""docs/breaker.md says what the policy and the client do."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from slodrift_client import Limits

from schemas.policy import Breaker, Caps, PoolPolicy
from schemas.scopes import MAX_CLASSES, SESSION_BUCKETS

PAGE = (Path(__file__).parents[2] / "docs/breaker.md").read_text()
ROWS = re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
SETTINGS = {name: value.strip() for name, value in ROWS if "." in name}
LIMITS = {name: value.strip() for name, value in ROWS if "." not in name}


@pytest.mark.parametrize("name", SETTINGS)
def test_default_of_a_setting(name: str) -> None:
    value: Any = PoolPolicy()
    for part in name.split("."):
        value = getattr(value, part)
    if isinstance(value, tuple):
        assert set(SETTINGS[name].split(", ")) == set(map(str, value))
    else:
        assert float(SETTINGS[name]) == value


def test_all_settings_of_breakers_and_caps_are_there() -> None:
    wanted = {f"breaker.{name}" for name in Breaker.model_fields} | {f"caps.{name}" for name in Caps.model_fields}
    assert wanted - SETTINGS.keys() == {"breaker.actions"}


def test_limits_of_hosts() -> None:
    defaults = {f.name: f.default for f in fields(Limits)}
    assert {name: float(value) for name, value in LIMITS.items()} == defaults


@pytest.mark.parametrize(
    ("scope", "word"), [("node", "eject"), ("request", "shed` to 10 %"), ("session", "shed` to 0 %"), ("pool", "shed` to 85 %")]
)
def test_default_actions(scope: str, word: str) -> None:
    (line,) = re.findall(rf"^\| {scope} \|.*\| (`.*) \|$", PAGE, re.MULTILINE)
    assert word in line
    action = getattr(Breaker().actions, scope)
    said = re.search(r"to (\d+) %", line)
    assert line.startswith(f"`{action.action}`")
    assert action.admit_ratio == (0.0 if said is None else int(said[1]) / 100)


def test_fixed_numbers() -> None:
    assert f"{SESSION_BUCKETS:,} session buckets, {MAX_CLASSES} classes" in PAGE
