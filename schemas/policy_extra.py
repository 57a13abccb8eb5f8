"""A further drift detector of the library river, named in a policy: `{river: drift.ADWIN, on: mean_log_latency, delta: 0.002}`.

Whatever stands beside `river` and `on` is a parameter of the detector. It is checked when the policy is read: the class must
exist and be a drift detector, the parameters must be its own, and it must accept their values. river is imported only when a
policy names it.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["Extra", "ExtraOn", "make_detector"]

ExtraOn = Literal["mean_log_latency", "p99_log", "error_ratio", "throughput", "n"]
"""Per node and tick: mean and 99th percentile of the natural logarithm of each latency (seconds), share of outcomes against the
node, output tokens a second of the requests that finished, requests that finished."""

_MODULES = ("drift", "drift.binary")
_TRIAL = (0.5, 0.1, 0.9, 0.0, 1.0) * 8
_SEED = 0  # of detectors that draw random numbers: a replay must repeat itself


class Extra(BaseModel):
    """A detector of river on one summary of each tick. It is shown in verdicts and opens no breaker."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    river: str
    """Class below `river`, for example drift.ADWIN, drift.KSWIN, drift.PageHinkley."""
    on: ExtraOn
    """Summary of a tick that it watches."""

    @field_validator("river")
    @classmethod
    def _known(cls, name: str) -> str:
        _class_of(name)
        return name

    @model_validator(mode="after")
    def _fits(self) -> Extra:
        make_detector(self)
        return self

    @property
    def name(self) -> str:
        """Under which it appears in verdicts."""
        return f"{self.river}:{self.on}"


def _fault(text: str) -> PydanticCustomError:
    return PydanticCustomError("extra_detector", "{text}", {"text": text})


def _classes() -> dict[str, Any]:
    """Every drift detector of river by its name below `river`."""
    from river.base import BinaryDriftDetector, DriftDetector

    found: dict[str, Any] = {}
    for path in _MODULES:
        for name, thing in vars(importlib.import_module(f"river.{path}")).items():
            if inspect.isclass(thing) and issubclass(thing, DriftDetector | BinaryDriftDetector):
                found[f"{path}.{name}"] = thing
    return found


def _class_of(name: str) -> Any:
    from schemas.policy_faults import did_you_mean

    known = _classes()
    if name not in known:
        raise _fault(f"unknown river detector {name!r}, {did_you_mean(name, list(known))}")
    return known[name]


def make_detector(extra: Extra) -> Any:
    """A new detector as `extra` says.

    Raises:
        PydanticCustomError: It cannot be made so; the message says why and what to do.
    """
    from river.base import BinaryDriftDetector

    from schemas.policy_faults import did_you_mean

    cls = _class_of(extra.river)
    if issubclass(cls, BinaryDriftDetector) and extra.on != "error_ratio":
        raise _fault(f"{extra.river} watches shares of failures, on is {extra.on!r}, write on: error_ratio")
    known = {name: p.default for name, p in inspect.signature(cls).parameters.items() if name != "window"}
    given = dict(extra.model_extra or {})
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, list(known)) if known else "it takes none"
            raise _fault(f"unknown parameter {name!r} of {extra.river}, nothing would read it, {hint}")
        if (kind := _wrong_kind(value, known[name])) is not None:
            raise _fault(f"{name} of {extra.river} is {value!r}, it must be {kind}, write one such as {known[name]!r}")
    if "seed" in known:
        given.setdefault("seed", _SEED)
    try:
        detector = cls(**given)
        for value in _TRIAL:
            detector.update(value)
        return cls(**given)
    except (ValueError, TypeError, ArithmeticError, LookupError) as exc:
        shown = ", ".join(f"{name}: {value!r}" for name, value in given.items())
        raise _fault(f"{extra.river} refuses {shown}: {exc}, choose other values") from None


def _wrong_kind(value: Any, default: Any) -> str | None:
    """What a parameter with this default should have been, None when `value` is that: a worker finds out too late."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, str):
        return None if isinstance(value, str) else "text"
    if isinstance(default, float):
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
