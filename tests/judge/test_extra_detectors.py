"""Detectors named in a policy appear in verdicts, survive a snapshot, and decide nothing."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.results import encode_line
from streams.judge import PoolJudge

EXTRA = [
    {"river": "drift.PageHinkley", "on": "mean_log_latency", "threshold": 1.0, "min_instances": 10},
    {"river": "drift.PageHinkley", "on": "mean_log_latency", "threshold": 9.0},
    {"river": "drift.ADWIN", "on": "n"},
    {"river": "drift.binary.DDM", "on": "error_ratio"},
]
ALWAYS = [{"river": "drift.DummyDriftDetector", "on": on, "t_0": 1} for on in ("mean_log_latency", "error_ratio", "n")]


def judge(kit: Any, extra: list[dict[str, Any]]) -> PoolJudge:
    return PoolJudge(kit.POOL, kit.policy(detection={"extra": extra}), policy_version="v")


def test_verdicts_show_them_by_series(kit: Any) -> None:
    traffic = kit.traffic(nodes=3, seconds=500.0, faults=[kit.Fault("slow", [1], 300.0)])
    heard = kit.feed(judge(kit, EXTRA), traffic)
    ttft = [v for v in heard.verdicts if v.sli == "ttft_s"]
    assert set(ttft[0].extra) == {"drift.PageHinkley:mean_log_latency", "drift.PageHinkley:mean_log_latency#2"}
    assert set(next(v for v in heard.verdicts if v.sli == "errors").extra) == {"drift.binary.DDM:error_ratio"}
    assert set(next(v for v in heard.verdicts if v.sli == "throughput").extra) == {"drift.ADWIN:n"}
    saw = {v.node for v in ttft if v.extra["drift.PageHinkley:mean_log_latency"] and v.t > kit.T0 + 300}
    assert saw == {"gpu-01"}


def test_they_open_and_change_nothing(kit: Any) -> None:
    for faults in ([], [kit.Fault("slow", [1], 200.0)]):
        traffic = kit.traffic(nodes=3, seconds=400.0, faults=faults)
        without, with_them = kit.feed(judge(kit, []), traffic), kit.feed(judge(kit, ALWAYS), traffic)
        assert all(any(v.extra.values()) for v in with_them.verdicts)
        assert [encode_line(d) for d in with_them.decisions] == [encode_line(d) for d in without.decisions]
        assert [encode_line(f) for f in with_them.findings] == [encode_line(f) for f in without.findings]
        assert bool(with_them.decisions) == bool(faults)


def test_without_them_verdicts_are_as_before(kit: Any) -> None:
    heard = kit.feed(judge(kit, []), kit.traffic(nodes=2, seconds=60.0))
    assert b'"extra":' not in b"".join(encode_line(v) for v in heard.verdicts)


@pytest.mark.parametrize("at_s", [203.0, 320.0])
def test_a_snapshot_carries_them(kit: Any, at_s: float) -> None:
    traffic = kit.traffic(nodes=3, seconds=500.0, faults=[kit.Fault("slow", [1], 300.0)], state_events=False)
    cut = int(((traffic.batch.ts_ns - kit.T0 * 10**9) < at_s * 1e9).sum())
    first, rest = traffic.batch.take(slice(0, cut)), traffic.batch.take(slice(cut, None))
    one = judge(kit, EXTRA)
    one.requests(first)
    one.advance()
    other = PoolJudge.restore(one.snapshot(), one.policy, policy_version="v")
    later = [kit.feed(j, kit.Traffic(rest)).verdicts for j in (one, other)]
    assert [encode_line(v) for v in later[0]] == [encode_line(v) for v in later[1]]
    assert any(any(v.extra.values()) for v in later[0])


def test_other_channels_after_a_restart_start_anew(kit: Any) -> None:
    traffic = kit.traffic(nodes=2, seconds=200.0, state_events=False)
    cut = len(traffic.batch) // 2
    one = judge(kit, EXTRA)
    one.requests(traffic.batch.take(slice(0, cut)))
    one.advance()
    rest = kit.Traffic(traffic.batch.take(slice(cut, None)))
    changed = PoolJudge.restore(one.snapshot(), kit.policy(detection={"extra": ALWAYS[:1]}), policy_version="w")
    said = [v.extra for v in kit.feed(changed, rest).verdicts if v.sli == "ttft_s"]
    assert said
    assert all(set(extra) == {"drift.DummyDriftDetector:mean_log_latency"} for extra in said)
    gone = PoolJudge.restore(one.snapshot(), kit.policy(), policy_version="w")
    assert b'"extra":' not in b"".join(encode_line(v) for v in kit.feed(gone, rest).verdicts)
