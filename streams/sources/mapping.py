"""Rows of a table to request events: which column is which field, and how its text is read.

A mapping is written `ts=timestamp,ttft_s=value,node=:n1`: field, equals sign, column; a colon starts a constant. Names with
commas are quoted as in CSV: `"ttft_s=p99, ms"`. Only `ts` and one latency are needed.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from schemas.batch import LATENCY_SLIS
from schemas.errors import ConfigError
from schemas.telemetry import RequestEvent
from streams.framing_rejects import Reject

__all__ = ["ColumnMap", "epoch_s"]

_DEFAULTS = {"pool": "default", "node": "n1", "outcome": "ok"}
_TEXT = {"pool", "node", "outcome", "request_id", "tenant", "session", "adapter", "probe_host"}
_UNKNOWN = {"", "null", "none", "na", "n/a", "nan", "-"}
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
FIELDS: tuple[str, ...] = RequestEvent.__struct_fields__


class ColumnMap:
    """Turns rows into events.

    Args:
        items: Texts of `--map`; empty means that columns are called like the fields.
        header: Names of the columns there are.
        where: File name for messages.

    Raises:
        ConfigError: A field does not exist, a column is not there, or `ts` or every latency is missing.
    """

    def __init__(self, items: Sequence[str], header: Sequence[str], where: str) -> None:
        wanted = parse_map(items) if items else {name: name for name in FIELDS if name in {h.strip() for h in header}}
        constants = dict(_DEFAULTS)
        self.columns: dict[str, int] = {}
        for name, column in wanted.items():
            if column.startswith(":"):
                constants[name] = column[1:]
            else:
                self.columns[name] = _find(column, header, where)
                constants.pop(name, None)
        lacking = [] if "ts" in self.columns else ["ts"]
        if not any(name in self.columns for name in LATENCY_SLIS):
            lacking.append(f"one of {', '.join(LATENCY_SLIS)}")
        if lacking:
            raise ConfigError(
                f"{where}: no column gives {' and '.join(lacking)}: say which with "
                f"--map ts=COLUMN,ttft_s=COLUMN; columns there: {', '.join(header)}"
            )
        self._constants = {name: _read(name, value) for name, value in constants.items()}

    def event(self, row: Sequence[Any], raw: bytes, offset: int) -> RequestEvent | Reject:
        """The event of one row, or why there is none. Values out of range are left to the framer."""
        fields: dict[str, Any] = dict(self._constants)
        for name, index in self.columns.items():
            try:
                fields[name] = _read(name, row[index])
            except (ValueError, TypeError, OverflowError):
                reason = "bad_timestamp" if name == "ts" else "bad_type"
                return Reject(raw, reason, f"{name} = {str(row[index])[:64]!r} cannot be read", offset)
            except IndexError:
                return Reject(raw, "missing_field", f"the row has {len(row)} cells, {name} is in number {index + 1}", offset)
        for name in ("ts", "pool", "node", "outcome"):
            if fields[name] is None:
                return Reject(raw, "missing_field", f"{name} is empty", offset)
        for name in ("pool", "node"):
            if len(fields[name]) > 256:
                return Reject(raw, "bad_value", f"{name} has {len(fields[name])} characters, at most 256", offset)
        for name in LATENCY_SLIS:
            if fields.get(name) in (float("inf"), float("-inf")):
                return Reject(raw, "nan_or_inf", f"{name} = {fields[name]}", offset)
        return RequestEvent(**fields)


def parse_map(items: Sequence[str]) -> dict[str, str]:
    """Field to column name, or to `:constant`."""
    wanted: dict[str, str] = {}
    for cell in (cell for item in items for cell in next(csv.reader([item], skipinitialspace=True), [])):
        name, equals, column = cell.partition("=")
        name = name.strip()
        if not equals or not column.strip():
            raise ConfigError(f"--map {cell!r}: write FIELD=COLUMN, or FIELD=:CONSTANT")
        if name not in FIELDS:
            raise ConfigError(f"--map {cell!r}: there is no field {name!r}; fields are {', '.join(FIELDS)}")
        if name in wanted:
            raise ConfigError(f"--map names {name!r} twice")
        wanted[name] = column if column.startswith(":") else column.strip()
    return wanted


def _find(column: str, header: Sequence[str], where: str) -> int:
    """Index of a column: spelled exactly, else the only one that differs in case and outer blanks alone."""
    same = [i for i, name in enumerate(header) if name == column]
    if not same:
        same = [i for i, name in enumerate(header) if name.strip().lower() == column.strip().lower()]
    if not same:
        raise ConfigError(f"{where}: there is no column {column!r}; columns there: {', '.join(header)}")
    if len(same) > 1:
        raise ConfigError(f"{where}: {len(same)} columns are called {column!r}: rename one")
    return same[0]


def _read(name: str, value: Any) -> Any:
    if value is None or (isinstance(value, str) and value.strip().lower() in _UNKNOWN):
        return None
    if name in _TEXT:
        return str(value).strip()
    if name == "ts":
        return epoch_s(value)
    if name == "probe":
        return _BOOLS[str(value).strip().lower()] if str(value).strip().lower() in _BOOLS else _unreadable()
    number = float(value)
    if number != number:  # a NaN that a table uses for "nothing here"
        return None
    if name in LATENCY_SLIS:
        return number
    return int(number) if number.is_integer() else _unreadable()


def _unreadable() -> Any:
    raise ValueError


def epoch_s(value: Any) -> float:
    """Unix seconds of a timestamp: seconds, milliseconds, microseconds or nanoseconds, or an ISO 8601 date-time (UTC if it
    names no zone).

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    try:
        number = float(value)
    except ValueError:
        moment = datetime.fromisoformat(value.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    for limit, unit_per_s in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)):
        if abs(number) < limit:
            return number / unit_per_s
    raise ValueError(f"{value} is no time")


def row_bytes(row: Sequence[Any]) -> bytes:
    """A row as JSON, for refusals."""
    return msgspec.json.encode(list(row), enc_hook=str)
