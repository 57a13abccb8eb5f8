"""Policy of what a breaker does when it opens: one action a scope.

`eject`: no request to the subject. `shed`: the share `admit_ratio` of the requests still goes, chosen by a hash of the request
or session. `fallback`: requests beyond `admit_ratio` go to another pool or service, once. `degrade`: all requests go, under a
cheaper profile that the gateway knows by name.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Action", "Actions"]

Name = Annotated[str, Field(min_length=1, max_length=256)]
_POOL_FLOOR = 0.5


class Action(BaseModel):
    """What to do with requests that an open breaker covers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    action: Literal["eject", "shed", "fallback", "degrade"]
    admit_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the requests that still goes where it was meant to; only `shed` and `fallback` read it."""
    fallback: Name | None = None
    """Pool or service to try instead, once; compulsory for `fallback`."""
    profile: Name | None = None
    """Name of the cheaper profile; compulsory for `degrade`."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.action == "fallback" and self.fallback is None:
            raise ValueError("action fallback needs `fallback`, the name of another pool or service")
        if self.action == "degrade" and self.profile is None:
            raise ValueError("action degrade needs `profile`, the name of a profile that the gateway knows")
        return self


class Actions(BaseModel):
    """Action of each scope."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    node: Action = Action(action="eject")
    """A node gets no request: its peers can take them."""
    session: Action = Action(action="shed", admit_ratio=0.0)
    """A session bucket is refused; there is no other place for what breaks engines wherever it goes."""
    request: Action = Action(action="shed", admit_ratio=0.1)
    """A tenth of a request class still goes, so that its state stays known."""
    pool: Action = Action(action="shed", admit_ratio=0.85)
    """A pool is relieved, never closed."""

    @model_validator(mode="after")
    def _pool_stays(self) -> Self:
        if self.pool.action == "eject" or (self.pool.action != "degrade" and self.pool.admit_ratio < _POOL_FLOOR):
            raise ValueError(f"actions.pool must leave traffic: shed or fallback with admit_ratio >= {_POOL_FLOOR:g}, or degrade")
        return self
