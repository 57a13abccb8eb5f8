"""Orders of operators in the judge: when they hold, that they are used once, and that a replay or a restart decides the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from schemas.errors import SchemaError
from schemas.frame import EventFrame, FrameHeader, decode_frame, encode_event_frame
from schemas.override import MAX_OVERRIDE_S, keyring_of, override_fault, sign_override, verify_override
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.signing import Signer
from schemas.telemetry import OverrideEvent
from sinks.projection import Projection
from streams.cli import main
from streams.framing import EventFramer
from streams.judge import PoolJudge

T0 = 1_767_225_600.0
POOL, N = "chat-70b/eu/h100", 12
PRIVATE = Ed25519PrivateKey.generate()
PUBLIC = base64.b64encode(PRIVATE.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


def order(
    state: str = "FORCED_OPEN", start: float = 60.0, length: float = 60.0, subject: str = "gpu-03", **fields: Any
) -> OverrideEvent:
    """Given three seconds before its start; times in seconds after T0."""
    length = 0.0 if state == "CLOSED" else length
    fields = {"ts": T0 + start - 3.0, "reason": "burns", "operator": "ada", "id": f"order-{state}-{start}-{subject}", **fields}
    return OverrideEvent(pool=POOL, subject=subject, state=state, start=T0 + start, end=T0 + start + length, **fields)  # type: ignore[arg-type]


def policy(**override: Any) -> PoolPolicy:
    return PoolPolicy.model_validate({"mode": "enforce", "slo": {"ttft_s": {"threshold": 1.0}}, "override": override})


def judge(**override: Any) -> PoolJudge:
    return PoolJudge(POOL, policy(**override), policy_version="v1", epoch=1)


def second(i: int) -> bytes:
    """Each node answers one request in the second."""
    return b"\n".join(
        json.dumps(
            {"kind": "request", "ts": T0 + i + n / 100, "pool": POOL, "node": f"gpu-{n:02d}", "ttft_s": 0.2, "outcome": "ok"}
        ).encode()
        for n in range(N)
    )


class Run:
    """A judge fed second by second; `at` maps seconds to the orders that arrive then."""

    def __init__(
        self,
        at: dict[int, Sequence[OverrideEvent]],
        seconds: int = 240,
        piece: int = 5,
        restart: int | None = None,
        **override: Any,
    ) -> None:
        self.judge, framer = judge(**override), EventFramer()
        self.decisions: list[Decision] = []
        self.rejected: dict[str, int] = {}
        for i in range(0, seconds, piece):
            lines = [line for s in range(i, i + piece) for line in second(s).split(b"\n")]
            for s in range(i, i + piece):
                lines += [msgspec.json.encode(e) for e in at.get(s, ())]
            framed = framer.feed(lines)
            assert framed.rejects == []
            for rows in framed.pools.values():
                self.judge.requests(rows.batch)
                for event in rows.events:
                    self.judge.event(event)
            self.take(self.judge.advance())
            if restart is not None and i <= restart < i + piece:
                self.judge = PoolJudge.restore(self.judge.snapshot(), policy(**override), policy_version="v1", epoch=1)
        self.take(self.judge.finish())

    def take(self, outputs: list[Any]) -> None:
        self.decisions += [d for o in outputs for d in o.decisions]
        for o in outputs:
            for reason, n in o.rejected.items():
                self.rejected[reason] = self.rejected.get(reason, 0) + n

    @property
    def moves(self) -> list[tuple[float, str, str]]:
        return [(d.t - T0, d.subject, d.state) for d in self.decisions]


def test_forced_open_from_its_start_to_its_end() -> None:
    run = Run({60: [order()]})
    assert run.moves == [(60.0, "gpu-03", "FORCED_OPEN"), (120.0, "gpu-03", "CLOSED")]  # [start, end)
    forced, released = run.decisions
    assert forced.evidence["operator"] == {
        "id": order().id,
        "who": "ada",
        "reason": "burns",
        "start_s": T0 + 60,
        "end_s": T0 + 120,
    }
    assert forced.evidence["over_cap"] is False
    assert forced.reason == "gpu-03: ada ordered FORCED_OPEN: burns"
    assert (forced.action, forced.not_after, released.action) == ("eject", T0 + 120 + run.judge.ticker.breakers.grace_s, "none")
    assert run.rejected == {}


@pytest.mark.parametrize(("start", "first"), [(60.0, 60.0), (60.001, 65.0), (64.999, 65.0), (65.0, 65.0)])
def test_the_start_is_in_and_the_end_is_out(start: float, first: float) -> None:
    (at, _, _), (end, _, _) = Run({int(start): [order(start=start)]}).moves
    assert at == first
    assert end == (first + 60.0)


def test_adjacent_orders_leave_no_gap() -> None:
    run = Run({60: [order()], 61: [order(start=120.0, ts=T0 + 61, id="the-second-one")]})
    assert run.moves == [(60.0, "gpu-03", "FORCED_OPEN"), (120.0, "gpu-03", "FORCED_OPEN"), (180.0, "gpu-03", "CLOSED")]


def test_closed_and_disabled() -> None:
    run = Run({60: [order()], 80: [order("CLOSED", 80.0)], 100: [order("DISABLED", 100.0)]})
    assert run.moves == [
        (60.0, "gpu-03", "FORCED_OPEN"),
        (80.0, "gpu-03", "CLOSED"),
        (100.0, "gpu-03", "DISABLED"),
        (160.0, "gpu-03", "CLOSED"),
    ]
    disabled = run.decisions[2]
    assert (disabled.action, disabled.admit_ratio) == ("none", 1.0)


def test_an_order_before_the_first_tick_of_all() -> None:
    early = judge()
    early.event(order(start=-40.0, length=600.0))
    out = early.advance()
    framer = EventFramer()
    for i in range(60):
        for rows in framer.feed(second(i).split(b"\n")).pools.values():
            early.requests(rows.batch)
        out += early.advance()
    assert [d.state for o in [*out, *early.finish()] for d in o.decisions] == ["FORCED_OPEN"]


def test_caps_of_automation_do_not_hold_and_it_is_said_but_a_cap_of_their_own_does() -> None:
    mine = Signer(PRIVATE)
    run = Run({60: [sign_override(order(subject=f"gpu-{n:02d}"), mine) for n in range(4)]}, keys=(PUBLIC,))
    forced = [d for d in run.decisions if d.state == "FORCED_OPEN"]
    assert [d.evidence["over_cap"] for d in forced] == [False, True]  # one node in ten; 20 % of twelve are two
    assert run.rejected == {"override_over_cap": 2}  # hosts would refuse the whole state


def test_without_a_signature_orders_hold_one_node_in_twenty() -> None:
    again = order(start=70.0, length=90.0, subject="gpu-00", id="a-longer-one")
    run = Run({60: [order(subject=f"gpu-{n:02d}") for n in range(2)], 70: [again]})
    assert [s for _, s, state in run.moves if state == "FORCED_OPEN"] == ["gpu-00", "gpu-00"]  # another end is no other node
    assert run.rejected == {"unsigned_override_over_cap": 1}


def test_what_is_refused_is_counted() -> None:
    first = order()
    run = Run({
        60: [first],
        70: [order("CLOSED", 70.0, subject="gpu-05"), order(start=70.0, length=120.0, subject="nobody")],
        90: [first],  # the same frame again
        150: [order("CLOSED", 150.0), first],  # and after its end
    })  # fmt: skip
    assert run.moves == [(60.0, "gpu-03", "FORCED_OPEN"), (120.0, "gpu-03", "CLOSED")]
    assert run.rejected == {"needless_override": 2, "unknown_override_subject": 1, "used_override": 1, "expired_override": 1}
    assert "nobody" not in run.judge.registry.names  # a mistyped name makes no node


def test_an_order_behind_the_clock_takes_effect_at_once_with_the_same_identity() -> None:
    due, late = Run({60: [order(length=120.0)]}), Run({100: [order(length=120.0)]})
    assert late.moves[0][0] > due.moves[0][0]
    assert late.moves[1] == due.moves[1]
    assert [d.tx for d in late.decisions] == [d.tx for d in due.decisions]
    assert late.rejected == {}


@pytest.mark.parametrize("piece", [1, 3, 20])
def test_framing_changes_nothing(piece: int) -> None:
    at = {60: [order(), order(subject="gpu-07", start=60.5)], 80: [order("CLOSED", 80.0)]}
    assert Run(at, piece=piece).decisions == Run(at).decisions


@pytest.mark.parametrize("restart", [58, 62, 70, 118])
def test_a_restart_changes_nothing(restart: int) -> None:
    at = {50: [order(start=75.0, ts=T0 + 50)], 90: [order(start=75.0, ts=T0 + 50)]}
    whole, broken = Run(at), Run(at, restart=restart)
    assert broken.decisions == whole.decisions
    assert broken.rejected == whole.rejected == {"used_override": 1}


def test_signatures() -> None:
    stranger, mine = Signer(Ed25519PrivateKey.generate()), Signer(PRIVATE)
    forged = msgspec.structs.replace(sign_override(order(id="forged-id"), mine), subject="gpu-04")
    orders = [order(id="unsigned-id"), sign_override(order(id="stranger-id"), stranger), forged, sign_override(order(), mine)]
    run = Run({60: orders}, keys=(PUBLIC,))
    assert run.moves == [(60.0, "gpu-03", "FORCED_OPEN"), (120.0, "gpu-03", "CLOSED")]
    assert run.rejected == {"unsigned_override": 3}
    assert run.decisions[0].evidence["operator"]["key_id"] == mine.key_id


def test_a_signature_survives_json_and_frames() -> None:
    signed = sign_override(order(start=60.123, reason='\u00fc "quoted"\n'), Signer(PRIVATE))
    frame = decode_frame(encode_event_frame(FrameHeader(pool=POOL, node=""), [signed]))
    assert isinstance(frame, EventFrame)
    again = msgspec.json.decode(msgspec.json.encode(signed), type=OverrideEvent)
    for event in (signed, again, frame.events[0]):
        assert verify_override(event, keyring_of((PUBLIC,))) == signed.key_id  # type: ignore[arg-type]
    for name in OverrideEvent.__struct_fields__:
        value = getattr(signed, name)
        other = {"state": "DISABLED", "key_id": "ed25519-" + "0" * 16, "sig": "A" * 86}.get(
            name, value + 1 if isinstance(value, float) else f"{value}x"
        )
        with pytest.raises(SchemaError):
            verify_override(msgspec.structs.replace(signed, **{name: other}), keyring_of((PUBLIC,)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"length": MAX_OVERRIDE_S}, ""),
        ({"length": MAX_OVERRIDE_S + 0.001}, "at most 4 h"),
        ({"length": 0.0}, "after its start"),
        ({"length": -1.0}, "after its start"),
        ({"length": float("nan")}, "after its start"),
        ({"reason": " \n"}, "reason"),
        ({"operator": " "}, "who"),
        ({"ts": T0 + 61.0}, "before it was ordered"),
        ({"ts": T0 - 24 * 3600.0}, "more than 24 h"),
    ],
)
def test_rules(fields: dict[str, Any], said: str) -> None:
    event = order(**fields)
    assert said in override_fault(event)
    assert bool(override_fault(event)) is bool(said)
    if said:  # a frame that nobody checked before
        run = judge()
        run.event(event)
        run.advance()
        assert run.rejected == {"bad_override": 1}


@pytest.mark.parametrize("subject", ["session:9999", "request:colour:red", "pool:x"])
def test_the_command_refuses_what_is_no_subject(subject: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["override", POOL, subject, "--state", "FORCED_OPEN", "--for", "5m", "--reason", "abuse"])
    assert ended.value.code == 2
    assert subject.split(":")[0] in capsys.readouterr().err


def test_a_policy_may_allow_less() -> None:
    assert Run({60: [order()]}, max_s=30.0).rejected == {"bad_override": 1}


def test_hosts_are_told_until_its_end() -> None:
    forced, released = Run({60: [order(length=120.0)]}).decisions
    state = Projection()
    state.apply(forced, clock_s=forced.t, now_ms=1_000_000)
    (entry,) = state.entries
    assert (entry.state, entry.latched, entry.on_stale) == ("FORCED_OPEN", True, "hold")
    assert entry.not_after_ms is not None
    assert entry.not_after_ms >= 1_000_000 + 120_000
    state.apply(released, clock_s=released.t, now_ms=1_120_000)
    assert state.entries == []
