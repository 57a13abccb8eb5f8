"""What is wrong with a policy, in words a person can act on: what, why, what to do.

Pydantic finds faults of single settings; `cross_faults` knows which settings must fit together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from schemas.policy import PoolPolicy

__all__ = ["cross_faults", "did_you_mean", "explain", "names_below", "unwrap"]

_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "%": 0.01}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|sec|m|min|h|d|%)?\s*")
_BOUNDS = {"greater_than": ("gt", "above"), "greater_than_equal": ("ge", "at least"),
           "less_than": ("lt", "below"), "less_than_equal": ("le", "at most")}  # fmt: skip

_AT_MOST = (  # (small, large, why)
    (("breaker", "open_s"), ("breaker", "open_max_s"), "the back-off doubles from the first up to the second"),
    (("breaker", "close_after_s"), ("breaker", "half_open_max_s"), "a half-open breaker could never close in time"),
    (("breaker", "probe_timeout_s"), ("breaker", "half_open_max_s"), "a hanging probe would outlive half-open"),
    (("detection", "period_s"), ("detection", "long_drift_s"), "a long drift is at least one period"),
    (("tick_s",), ("detection", "period_s"), "a period holds at least one tick"),
    (("tick_s",), ("breaker", "failure_window_s"), "the window holds at least one tick"),
)


def did_you_mean(word: str, known: list[str]) -> str:
    """`did you mean 'x'?` for the known word most like `word`, else the list of what is known."""
    near = difflib.get_close_matches(word.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    for k in known:
        if near and k.lower() == near[0]:
            return f"did you mean {k!r}?"
    return f"known are {', '.join(known)}"


def unwrap(annotation: Any) -> list[Any]:
    """The types inside a union, an Annotated, a dict (of its values) or a tuple."""
    inner = get_args(annotation)
    return [annotation] if not inner else [t for a in inner for t in unwrap(a)]


def names_below(path: tuple[str | int, ...]) -> list[str]:
    """Names of the settings that may stand at `path` of a pool entry; empty when it is no section."""
    models: list[type[BaseModel]] = [PoolPolicy]
    for part in path:
        found: list[type[BaseModel]] = []
        for model in models:
            fields = model.model_fields
            if isinstance(part, str) and part in fields:
                types = unwrap(fields[part].annotation)
                found += [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]
            else:  # a key of a dict, or an index: the model stays
                found.append(model)
        models = found
    return [name for model in models for name in model.model_fields]


def _elsewhere(name: str) -> str | None:
    """Section in which a setting called `name` lives."""
    for section, info in PoolPolicy.model_fields.items():
        for t in unwrap(info.annotation):
            if isinstance(t, type) and issubclass(t, BaseModel) and name in t.model_fields:
                return f"slo.<sli>.{name}" if section == "slo" else f"{section}.{name}"
    return None


def _number_in(value: Any) -> str | None:
    """A quoted number or quantity such as "500ms" as the number the author meant."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else f"{float(match[1]) * _UNITS.get(match[2] or '', 1.0):g}"


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = {None: "empty", True: "true", False: "false"}.get(value) if value is None or value is True or value is False else None
    text = text or (f"{value!r}" if isinstance(value, str) else f"{value}")
    return text if len(text) <= 60 else text[:57] + "..."


def _default_of(path: tuple[str | int, ...]) -> str:
    here: Any = PoolPolicy().model_dump()
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    return "" if here is None or isinstance(here, Mapping | tuple | list) else f" such as {_show(here)}"


def explain(error: ErrorDetails, path: tuple[str | int, ...]) -> str:
    """One sentence for one pydantic error at `path` of a pool entry: what, why, what to do."""
    kind, value, ctx = error["type"], error["input"], error.get("ctx", {})
    dotted = ".".join(str(p) for p in path if p != "[key]")
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        known, other = names_below(path[:-1]), _elsewhere(name)
        if other and other != dotted:
            return f"unknown setting {dotted!r}, it has another place, did you mean '{other}'?"
        return f"unknown setting {dotted!r}, nothing would read it, {did_you_mean(name, known)}"
    if kind == "extra_detector":
        return f"{dotted}: {ctx['text']}"
    if kind == "missing":
        return f"{dotted} is missing, it has no default, add it"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(ctx.get("expected", "")))
        if path and path[-1] == "[key]":
            return f"unknown SLI {value!r}, nothing measures it, {did_you_mean(str(value), allowed)}"
        return f"{dotted} is {_show(value)}, allowed are {', '.join(allowed)}, {did_you_mean(str(value), allowed)}"
    if kind in _BOUNDS:
        return _out_of_range(kind, dotted, name, value, ctx)
    if kind == "finite_number":
        return f"{dotted} is {_show(value)}, it must be a finite number, write one{_default_of(path)}"
    if kind in ("float_type", "float_parsing", "int_type", "int_parsing", "int_from_float"):
        whole = "a whole number" if kind.startswith("int") else "a number"
        meant = _number_in(value)
        todo = f"write {meant}" if meant else f"write one{_default_of(path)}"
        unit = " (seconds)" if name.endswith("_s") or name == "threshold" else ""
        return f"{dotted} is {_show(value)}, it must be {whole}{unit}, {todo}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        known = names_below(path)
        return f"{dotted or 'the entry'} is {_show(value)}, it must be a mapping, write settings below it: {', '.join(known[:6])}"
    if kind in ("tuple_type", "list_type"):
        return f"{dotted} is {_show(value)}, it must be a list, write [a, b]"
    if kind == "string_type":
        return f"{dotted} is {_show(value)}, it must be text, put it in quotes"
    return f"{dotted} is {_show(value)}, {error['msg'][:1].lower()}{error['msg'][1:]}, see docs/detection.md for its meaning"


def _out_of_range(kind: str, dotted: str, name: str, value: Any, ctx: Mapping[str, Any]) -> str:
    key, word = _BOUNDS[kind]
    bound = ctx.get(key)
    text = f"{dotted} is {_show(value)}, it must be {word} {bound:g}"
    if kind.startswith("less") and bound == 1 and isinstance(value, int | float):
        if 1 < value <= 100:
            text = f"{dotted} is {_show(value)}, it is a share and must be {word} 1"
            return f"{text}, did you mean {round(value / 100, 9):g}?"
        if name == "objective":
            return f"{text}, an objective of 100 % leaves no error budget, write 0.999 or less"
    if kind.startswith("less") and name == "threshold" and isinstance(value, int | float):
        return f"{text}, it is in seconds, did you mean {value / 1000:g}?"
    return f"{text}, choose another value"


def cross_faults(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[tuple[str, ...], ...], str]]:
    """Faults between settings of one pool: (paths of the settings involved, sentence).

    Args:
        settings: Plain effective settings, defaults included; values of a wrong type are passed over.
    """

    def num(path: tuple[str, ...]) -> float | None:
        value: Any = settings
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    for small, large, why in _AT_MOST:
        a, b = num(small), num(large)
        if a is not None and b is not None and a > b:
            text = f"{'.'.join(small)} is {a:g} and {'.'.join(large)} is {b:g}, {why}, lower the one or raise the other"
            yield (small, large), text
    detection = settings.get("detection")
    if isinstance(detection, Mapping) and detection.get("method") == "seed" and detection.get("kappa") is None:
        text = "detection.kappa is empty, method seed needs a factor, write kappa: 1.82"
        yield (("detection", "kappa"), ("detection", "method")), text
    cells = num(("cells",))
    for limit in ("absolute", "velocity"):
        most = num(("caps", limit))
        if cells is not None and most is not None and cells > 1 and most < cells:
            text = (
                f"cells is {cells:g} and caps.{limit} is {most:g}, it is divided among them and some could never open anything, "
            )
            yield (("cells",), ("caps", limit)), text + f"raise caps.{limit} or have fewer cells"
    inventory = settings.get("inventory")
    if isinstance(inventory, list | tuple):
        if not inventory:
            text = "inventory is empty, every node would be foreign and never ejected, list the nodes or remove it"
            yield (("inventory",),), text
        twice = sorted({str(n) for n in inventory if inventory.count(n) > 1})
        if twice:
            yield (("inventory",),), f"inventory names {twice[0]!r} twice, a node exists once, remove one"
