"""A pool that is split into cells, from JSON events to a host: each node in one cell, whose judge decides about it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from slodrift_client.gate import Gate
from structlog.testing import CapturingLogger

from detectors.caps import open_limit
from schemas.cells import cell_index, cell_of, cells_of, split
from schemas.contract import build, encode
from schemas.frame import decode_frame
from schemas.override import sign_override
from schemas.policy import PoolPolicy
from schemas.policy_file import Policy, parse_policy
from schemas.results import Decision
from schemas.signing import Signer
from schemas.telemetry import DeployEvent, GpuEvent, NodeEvent, OverrideEvent
from schemas.topics import partition_of
from sinks.projection import Projection
from streams.cli import main
from streams.framer_cells import in_cells
from streams.framer_cut import cut_frames
from streams.framing import EventFramer
from streams.judge.overrides import Overrides
from streams.labels import Incident
from streams.worker import policy_factory
from streams.worker.partition import JudgePartition
from streams.worker.policy_factory import PolicyFactory

T0 = 1_767_225_600.0
POOL, CELLS, PARTITIONS = "chat/eu/h100", 4, 8
NODES = [f"gpu-{i:03d}" for i in range(40)]
POLICY = f"""apiVersion: slodrift/v1
kind: Policy
pools:
  "chat/*":
    mode: enforce
    cells: {CELLS}
    tick_s: 5
    lateness_s: 5
    slo: {{e2e_s: {{threshold: 1.0}}}}
    detection: {{learning_s: 60}}
"""


def request(node: str, ts: float, **fields: Any) -> bytes:
    event = {"kind": "request", "ts": ts, "pool": POOL, "node": node, "outcome": "ok", "e2e_s": 0.3} | fields
    return json.dumps(event).encode()


def event(made: Any) -> bytes:
    return msgspec.json.encode(made)


def order(subject: str) -> OverrideEvent:
    return OverrideEvent(
        ts=T0,
        pool=POOL,
        subject=subject,
        state="FORCED_OPEN",
        reason="burns",
        operator="ada",
        id="order-0001",
        start=T0,
        end=T0 + 60,
    )


def framed(lines: list[bytes], n_cells: int = CELLS):
    return in_cells(EventFramer().feed(lines, range(100, 100 + len(lines))).pools, lambda pool: n_cells)


def test_rows_go_to_the_cell_of_their_node_and_nothing_is_lost() -> None:
    rng = np.random.default_rng(1)
    asked = [str(rng.choice(NODES)) for _ in range(500)]
    lines = [request(node, T0 + i, tenant=f"t-{i % 7}", request_id=f"r-{i}") for i, node in enumerate(asked)]
    pools = framed(lines)
    assert sorted(pools) == cells_of(POOL, CELLS)
    seen: dict[int, tuple[str, str]] = {}
    for name, rows in pools.items():
        assert rows.batch.pool == name
        assert {cell_of(POOL, node, CELLS) for node in rows.batch.nodes} == {name}
        assert (np.diff(rows.row_offset) > 0).all()
        for i, offset in enumerate(rows.row_offset.tolist()):
            seen[offset] = rows.batch.nodes[rows.batch.node[i]], rows.batch.tenants[rows.batch.tenant[i]]
    assert seen == {100 + i: (node, f"t-{i % 7}") for i, node in enumerate(asked)}


def test_whole_pools_and_cells_are_left_as_they_are() -> None:
    pools = EventFramer().feed([request("a", T0), request("b", T0, pool=f"{POOL}~1/4")]).pools
    assert in_cells(pools, lambda pool: 1) == pools
    again = in_cells(pools, parse_policy(POLICY).cells_of)
    assert set(again) == {cell_of(POOL, "a", CELLS), f"{POOL}~1/4"}
    assert again[f"{POOL}~1/4"] is pools[f"{POOL}~1/4"]


@pytest.mark.parametrize(
    "made",
    [
        NodeEvent(ts=T0, pool=POOL, node="gpu-007", running=1),
        GpuEvent(ts=T0, pool=POOL, node="gpu-007", gpu="0", xid=79),
        DeployEvent(ts=T0, pool=POOL, node="gpu-007"),
        order("gpu-007"),
    ],
)
def test_an_event_of_a_node_goes_to_its_cell(made: Any) -> None:
    mine = cell_of(POOL, "gpu-007", CELLS)
    pools = framed([event(made)])
    assert list(pools) == [mine]
    assert pools[mine].events == [msgspec.structs.replace(made, pool=mine)]
    ((pool, raw),) = cut_frames(_Framed(pools), "telemetry.nodes", 0)
    assert pool == mine
    assert decode_frame(raw).header.pool == mine


@pytest.mark.parametrize("made", [DeployEvent(ts=T0, pool=POOL), order("pool:"), order("session:7"), order("request:tenant:x")])
def test_an_event_of_the_pool_goes_to_all_cells(made: Any) -> None:
    pools = framed([event(made)])
    assert list(pools) == cells_of(POOL, CELLS)
    assert [rows.events for rows in pools.values()] == [[msgspec.structs.replace(made, pool=name)] for name in pools]
    assert [rows.event_offset for rows in pools.values()] == [[100]] * CELLS


@dataclass
class _Framed:
    """What `cut_frames` needs of `Framed`."""

    pools: dict[str, Any]


@dataclass(frozen=True)
class _Record:
    offset: int
    value: bytes
    timestamp: int = 0


class Pipeline:
    """Framer, one judge a partition, and the heads that hosts read, in memory."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.framer = policy, EventFramer()
        self.judges = {
            p: JudgePartition("telemetry.frames", p, PolicyFactory(policy), epoch=1, generation=1) for p in range(PARTITIONS)
        }
        self.offset = 0
        self.decisions: list[Decision] = []
        self.frames: dict[str, list[bytes]] = {}

    def send(self, lines: list[bytes]) -> None:
        made = self.framer.feed(lines, range(self.offset, self.offset + len(lines)))
        assert made.rejects == []
        made.pools = in_cells(made.pools, self.policy.cells_of)
        self.offset += len(lines)
        for pool, frame in cut_frames(made, "telemetry.requests", 0):
            self.frames.setdefault(pool, []).append(frame)
            state = self.judges[partition_of(pool, PARTITIONS)]
            step = state.step([_Record((state.next_offset or 0), frame)])
            assert step.dead == []
            self.decisions += [decision for output in step.outputs for decision in output.decisions]

    def heads(self) -> Iterator[tuple[str, bytes, bytes]]:
        """(pool, head, snapshot) as the projector writes them."""
        for state in self.judges.values():
            for pool, judge in state.pools.items():
                projection = Projection()
                for decision in (d for d in self.decisions if d.pool == pool):
                    projection.apply(decision, clock_s=decision.t, now_ms=1_000_000)
                n = state.n_eligible.get(pool, 0)
                head, snapshot = build(
                    fleet="f", pool=pool, version=max(projection.version, (1, 1, 1)), entries=projection.entries, n_eligible=n,
                    cap=open_limit(n, judge.policy.caps), mode=judge.policy.mode, issued_ms=1_000_000,
                )  # fmt: skip
                yield pool, encode(head), snapshot


def story(seconds: int, bad: str | None, pool: str = POOL) -> Iterator[list[bytes]]:
    """Each node answers five requests a second; from minute three on `bad` is ten times as slow."""
    rng = np.random.default_rng(3)
    for second in range(0, seconds, 5):
        lines = []
        for i in range(5 * 5):
            for node in NODES:
                slow = 10.0 if node == bad and second >= 180 else 1.0
                ts = T0 + second + i / 5
                lines.append(request(node, ts, pool=pool, e2e_s=round(0.3 * slow * float(np.exp(rng.normal(0, 0.2))), 4)))
        yield lines


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    made = Pipeline(parse_policy(POLICY))
    for lines in story(280, "gpu-017"):
        made.send(lines)
    return made


def test_a_bad_node_opens_in_its_cell_and_the_host_denies_exactly_it(pipeline: Pipeline) -> None:
    cells = cells_of(POOL, CELLS)
    assert sorted(pipeline.frames) == cells, "everything is judged in cells"
    assert len({partition_of(cell, PARTITIONS) for cell in cells}) == CELLS
    mine = cell_of(POOL, "gpu-017", CELLS)
    opened = [d for d in pipeline.decisions if d.state == "OPEN" and not d.capped]
    assert {(d.pool, d.subject) for d in opened} == {(mine, "gpu-017")}
    gate = Gate("f", [POOL], cells={POOL: CELLS}, clock=lambda: 10.0)
    for pool, head, snapshot in pipeline.heads():
        gate._views[pool].offer(head, snapshot, 10.0)
    gate._rebuild()
    assert [node for node in NODES if not gate.allow(node)] == ["gpu-017"]
    assert [node for node in NODES if not gate.allow(node, POOL)] == ["gpu-017"]
    assert [node for node in NODES if not gate.allow(node, cell_of(POOL, node, CELLS))] == ["gpu-017"]
    assert gate.decide("gpu-017").pool == mine


def test_a_cell_decides_what_a_pool_of_the_same_nodes_would(pipeline: Pipeline) -> None:
    """Nothing of a cell depends on the other cells: the same nodes as a pool of their own, under the cell's settings."""
    mine = split(cell_of(POOL, "gpu-017", CELLS))
    assert mine is not None
    alone = Pipeline(parse_policy(POLICY.replace(f"cells: {CELLS}", "caps: {absolute: 5, velocity: 1, min_pool: 10}")))
    for lines in story(280, "gpu-017"):
        alone.send([line for line in lines if cell_index(json.loads(line)["node"], CELLS) == mine.number])
    told = [(d.t, d.subject, d.state, d.reason) for d in pipeline.decisions if d.pool == cell_of(POOL, "gpu-017", CELLS)]
    assert told == [(d.t, d.subject, d.state, d.reason) for d in alone.decisions]


def test_frames_under_the_name_of_the_pool_are_one_more_pool_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = CapturingLogger()
    monkeypatch.setattr(policy_factory, "log", said)
    judge = PolicyFactory(parse_policy(POLICY)).new(POOL, 1, 1)
    assert judge.policy.caps.absolute == 20
    assert [call.method_name for call in said.calls] == ["warning"]
    assert "a pool that is split is judged under its own name" in said.calls[0].args[0]
    PolicyFactory(parse_policy(POLICY)).new(f"{POOL}~0/4", 1, 1)
    assert len(said.calls) == 1


def test_an_order_that_was_signed_for_the_pool_is_one_for_each_cell_and_no_other_pool() -> None:
    private = Ed25519PrivateKey.generate()
    public = base64.b64encode(private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()
    signed = sign_override(order("pool:"), Signer(private))
    rules = Overrides(PoolPolicy.model_validate_json(json.dumps({"override": {"keys": [public]}})))
    assert [rules.fault(e) for rows in framed([event(signed)]).values() for e in rows.events] == [None] * CELLS
    for forged in (
        msgspec.structs.replace(signed, pool="chat/us/h100~0/4"),
        msgspec.structs.replace(signed, pool=f"{POOL}~0/4", subject="session:1"),
        msgspec.structs.replace(order("pool:"), pool=f"{POOL}~0/4"),
        msgspec.structs.replace(signed, pool=f"{POOL}~4/4"),
    ):
        assert rules.fault(forged) == "unsigned_override"


def test_a_replay_splits_as_the_framer_does_and_labels_name_the_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = NODES[:8]
    lines = [request(node, T0 + i / 2) for i in range(400) for node in nodes]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "policy.yaml").write_text(POLICY)
    label = {"pool": POOL, "node": nodes[0], "from": T0, "to": T0 + 100}
    (tmp_path / "labels.json").write_text(json.dumps({"incidents": [label]}))
    assert msgspec.convert(label, Incident).concerns(cell_of(POOL, nodes[0], CELLS), nodes[0])
    assert not msgspec.convert(label, Incident).concerns("chat/us/h100~0/4", nodes[0])
    files = [str(tmp_path / name) for name in ("events.jsonl", "policy.yaml", "labels.json")]
    with pytest.raises(SystemExit) as left:
        main(["replay", files[0], "--policy", files[1], "--labels", files[2], "--json"])
    assert not left.value.code
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    wanted = {cell: sum(cell_of(POOL, node, CELLS) == cell for node in nodes) for cell in cells_of(POOL, CELLS)}
    assert {pool: counts["nodes"] for pool, counts in summary["pools"].items()} == {c: n for c, n in wanted.items() if n}
    assert sum(counts["requests"] for counts in summary["pools"].values()) == len(lines)


def test_a_framer_does_not_begin_with_a_policy_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY.replace(f"cells: {CELLS}", "cells: 8"))
    with pytest.raises(SystemExit, match="2"):
        main(["framer", "--policy", str(tmp_path / "policy.yaml")])
    assert "cells is 8 and caps.velocity is 5" in capsys.readouterr().err
