"""A dead letter: the bytes of input that was refused, and in the headers where they came from and why.

Value: the bytes, at most 64 KiB of them. Key: "topic/partition" of the source. Headers carry the context, as those of Kafka
Connect do (`errors.deadletterqueue.context.headers.enable`). Written with acks=all before the source offset is committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from schemas.errors import SchemaError

__all__ = ["MAX_BYTES", "DeadLetter", "from_message", "to_message"]

MAX_BYTES = 64 * 1024
_PREFIX = "slodrift."
_MAX_DETAIL = 1024


class DeadLetter(msgspec.Struct, kw_only=True, frozen=True):
    """One refused message or event.

    Attributes:
        raw: The bytes as they arrived, cut at `MAX_BYTES`.
        stage: Part that refused them: "framer", "decode", "rows", "judge", "archive".
        reason: Stable word, as in `SchemaError.reason`.
        detail: One sentence for people.
        topic, partition, offset: Where they came from; topic "" if not from Kafka.
        timestamp_ms: Of the source message, Unix milliseconds.
        size_bytes, sha256: Of the whole value, before it was cut.
        attempts: How often it was tried.
        count: Events in it that were refused (rows of a frame); 1 for a whole message.
    """

    raw: bytes
    stage: str
    reason: str
    detail: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0
    timestamp_ms: int = 0
    size_bytes: int = 0
    sha256: str = ""
    attempts: int = 1
    count: int = 1

    @property
    def truncated(self) -> bool:
        """Whether `raw` is only the beginning."""
        return len(self.raw) < self.size_bytes


_NUMBERS = ("partition", "offset", "timestamp_ms", "size_bytes", "attempts", "count")
_WORDS = ("stage", "reason", "detail", "topic", "sha256")


def to_message(letter: DeadLetter) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
    """(key, value, headers) of one dead letter; size and digest are filled in where the letter has none."""
    digest = letter.sha256 or hashlib.sha256(letter.raw).hexdigest()
    size = letter.size_bytes or len(letter.raw)
    whole = msgspec.structs.replace(letter, sha256=digest, size_bytes=size, detail=letter.detail[:_MAX_DETAIL])
    headers = [(_PREFIX + name, str(getattr(whole, name)).encode()) for name in (*_WORDS, *_NUMBERS)]
    return f"{letter.topic}/{letter.partition}".encode(), letter.raw[:MAX_BYTES], headers


def from_message(value: bytes | None, headers: Iterable[tuple[str, bytes | None]] | None) -> DeadLetter:
    """Read a dead letter back; headers it does not know are ignored.

    Raises:
        SchemaError: With reason ``bad_dead_letter``: a number is none, or stage or reason is missing.
    """
    known = {name.removeprefix(_PREFIX): (text or b"").decode("utf-8", "replace") for name, text in headers or ()}
    try:
        numbers = {name: int(known[name]) for name in _NUMBERS if name in known}
    except ValueError as exc:
        raise SchemaError("bad_dead_letter", str(exc)) from None
    words = {name: known[name] for name in _WORDS if name in known}
    if not words.get("stage") or not words.get("reason"):
        raise SchemaError("bad_dead_letter", "stage and reason are missing from the headers")
    return DeadLetter(raw=value or b"", **words, **numbers)  # type: ignore[arg-type]  # names checked above
