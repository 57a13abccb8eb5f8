"""The errors slodrift raises, as a tree; catch the level you care about.

SlodriftError
├── ConfigError      a policy, a setting or an argument is wrong (exit code 2)
├── SchemaError      a message cannot be understood; its bytes go to the dead letters
├── SourceError      a file, a topic or an endpoint cannot be read (exit code 3)
└── SinkError        a destination cannot be written (exit code 3)
    ├── SinkBackpressure   alive but full or away for now: keep the batch, try again
    └── SinkRejected       this batch can never be stored: dead-letter it
"""

from __future__ import annotations

__all__ = ["ConfigError", "SchemaError", "SinkBackpressure", "SinkError", "SinkRejected", "SlodriftError", "SourceError"]


class SlodriftError(Exception):
    """Base of every error raised on purpose by slodrift."""


class ConfigError(SlodriftError):
    """A policy, setting or argument is wrong; the message says where, what, why and what to do."""


class SchemaError(SlodriftError):
    """A message does not follow its schema.

    Args:
        reason: Stable snake_case word used as a counter label, for example ``bad_json``.
        detail: One sentence for people.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class SourceError(SlodriftError):
    """Input cannot be read."""


class SinkError(SlodriftError):
    """A destination cannot be written."""


class SinkBackpressure(SinkError):
    """The destination is away or full; nothing was lost, try again.

    Args:
        message: What happened.
        retry_after_s: Wait before the next attempt, seconds.
    """

    def __init__(self, message: str, retry_after_s: float = 0.2) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SinkRejected(SinkError):
    """The batch can never be stored as it is."""
