"""The judge's state as bytes: one MessagePack map, arrays as little-endian bytes. Compression is the caller's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from detectors.bank import SeriesBank
from schemas.results import Decision
from streams.judge.rows import Rows

if TYPE_CHECKING:
    from streams.judge.pool_judge import PoolJudge

__all__ = ["dump_judge", "load_judge"]

FORMAT = 3

_decode_decisions = msgspec.msgpack.Decoder(list[Decision]).decode


def dump_judge(judge: PoolJudge) -> bytes:
    """State of a judge that has nothing staged."""
    ticker = judge.ticker
    n = len(judge.registry.names)
    state: dict[str, Any] = {
        "format": FORMAT,
        "pool": judge.pool,
        "tick_ns": judge.tick_ns,
        "n": n,
        "slis": ticker.slis,
        "window": ticker.rules.window.length,
        "next": judge.next_slot,
        "quiet": judge.quiet,
        "rejected": [dict(judge.rejected), dict(judge._told)],
        "refused": judge.refused,
        "inherited": msgspec.msgpack.encode(judge.inherited),
        "waiting": [rows.dump() for rows in judge.waiting],
        "registry": judge.registry.dump(),
        "row_clock": judge.row_clock.dump(),
        "event_clock": judge.event_clock.dump(),
        "slots": judge.slots.dump(),
        "events": judge.events.dump(),
        "bank": ticker.bank.dump(),
        "errors": ticker.errors.dump(),
        "contract": ticker.contract.dump(),
        "empties": ticker.empties.dump(),
        "burn": ticker.burn.dump(),
        "health": [getattr(ticker.health, f.name).tobytes() for f in fields(ticker.health)],
        "deploys": ticker.deploys.dump(),
        "rules": ticker.rules.dump(),
        "breakers": ticker.breakers.dump(),
        "urgent": None if judge.urgent is None else judge.urgent.dump(),
        "eligible": ticker.eligible.tobytes(),
        "scopes": ticker.scopes.dump(),
        "units": ticker.units.dump(),
        "findings": ticker.findings.dump(),
        "extra": None if ticker.extra is None else ticker.extra.dump(),
        "voice": [ticker.voice.said.tobytes(), ticker.voice.said_s.tobytes()],
        "arrays": [a.tobytes() for a in (ticker.seen, ticker.few, ticker.refused, ticker.accepted, ticker.contrary)],
    }
    return msgspec.msgpack.encode(state)


def load_judge(raw: bytes, make: Callable[[str], PoolJudge]) -> PoolJudge:
    """A judge made by `make` with the state of `dump_judge`.

    A failure window of another length or other SLOs start empty; what was learnt stays.

    Raises:
        ValueError: The bytes are no snapshot of this format, or its ticks have another length.
    """
    state = msgspec.msgpack.decode(raw)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError("no snapshot of a judge in a format that this version reads: start without it")
    judge = make(state["pool"])
    if state["tick_ns"] != judge.tick_ns:
        raise ValueError(f"the snapshot has ticks of {state['tick_ns'] / 1e9:g} s, the policy of {judge.policy.tick_s:g} s")
    ticker, n = judge.ticker, state["n"]
    judge.registry.load(state["registry"])
    judge.next_slot, judge.quiet = state["next"], state["quiet"]
    judge.rejected, judge._told = (Counter(counts) for counts in state["rejected"])
    judge.refused = [(reason, event) for reason, event in state.get("refused", [])]
    judge.inherited = _decode_decisions(state["inherited"])
    judge.waiting = [Rows.load(rows) for rows in state["waiting"]]
    judge.row_clock.load(state["row_clock"])
    judge.event_clock.load(state["event_clock"])
    same_slos = state["slis"] == ticker.slis
    judge.slots.load(state["slots"], with_slos=same_slos)
    judge.events.load(state["events"])
    ticker.bank = SeriesBank.restore(state["bank"], judge.policy.detection)
    ticker.errors.load(state["errors"])
    ticker.contract.load(state["contract"])
    ticker.empties.load(state["empties"])
    if same_slos:
        ticker.burn.load(state["burn"])
    for f, a in zip(fields(ticker.health), state["health"], strict=True):
        setattr(ticker.health, f.name, np.frombuffer(a, np.int64 if f.name == "boot" else np.float64).copy())
    ticker.deploys.load(state["deploys"])
    if state["window"] == ticker.rules.window.length:
        ticker.rules.load(state["rules"])
    else:
        ticker.rules.grow(n)
    ticker.breakers.load(state["breakers"])
    if judge.urgent is not None:
        judge.urgent.load(state.get("urgent"))
    ticker.eligible = np.frombuffer(state.get("eligible", b""), np.bool_).copy()
    ticker.scopes.load(state["scopes"], with_windows=state["window"] == ticker.rules.window.length)
    ticker.units.load(state.get("units"), n)
    ticker.findings.load(state["findings"])
    if ticker.extra is not None:
        ticker.extra.load(state.get("extra"), n)
    said, said_s = state["voice"]
    n_slis = ticker.voice.said.shape[1]  # a pool that closed no tick yet has no nodes, and nothing to tell the width from
    ticker.voice.said = np.frombuffer(said, np.uint8).reshape(n, n_slis).copy()
    ticker.voice.said_s = np.frombuffer(said_s).reshape(n, n_slis).copy()
    seen, few, refused, accepted, contrary = state["arrays"]
    ticker.seen = np.frombuffer(seen, np.bool_).reshape(n, 4).copy()
    ticker.few = np.frombuffer(few, np.bool_).copy()
    ticker.refused, ticker.accepted, ticker.contrary = (
        np.frombuffer(raw, np.int64).copy() for raw in (refused, accepted, contrary)
    )
    return judge
