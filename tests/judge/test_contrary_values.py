"""Values that contradict each other: a first token after the end of its request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from schemas.batch import LATENCY_SLIS
from streams.judge import PoolJudge

Judged = Callable[..., Any]
TTFT, E2E = LATENCY_SLIS.index("ttft_s"), LATENCY_SLIS.index("e2e_s")


def heard(kit: Any, share: float, excess: float, restart: bool = False) -> Any:
    """A share of node 1's requests says that the first token came `excess` times as late as the end."""
    traffic = kit.traffic(seconds=300.0)
    batch = traffic.batch
    odd = (batch.node == batch.nodes.index(kit.name(1))) & (np.random.default_rng(0).random(len(batch)) < share)
    batch.latency_s[E2E, odd] = batch.latency_s[TTFT, odd] / np.float32(excess)
    judge = PoolJudge(kit.POOL, kit.policy(), policy_version="v1")
    if not restart:
        return kit.feed(judge, traffic)
    half = kit.T0 * 10**9 + 135 * 10**9
    first = kit.feed(judge, kit.Traffic(batch.take(batch.ts_ns < half)), finish=False)
    again = PoolJudge.restore(judge.snapshot(), judge.policy, policy_version="v1")
    rest = kit.feed(again, kit.Traffic(batch.take(batch.ts_ns >= half)))
    return kit.Heard(first.outputs + rest.outputs)


def told(heard: Any) -> list[tuple[float, str, dict[str, Any]]]:
    return [(f.t, f.node, f.evidence) for f in heard.findings if f.finding == "telemetry_fault"]


def test_a_node_that_contradicts_itself_is_named_once(kit: Any) -> None:
    found = told(heard(kit, share=0.5, excess=3.0))
    assert [node for _, node, _ in found] == ["gpu-01"]
    evidence = found[0][2]
    assert evidence["why"] == "ttft_s above e2e_s"
    assert evidence["requests"] == pytest.approx(0.5 * evidence["of"], rel=0.3)


@pytest.mark.parametrize(("share", "excess"), [(0.5, 1.005), (0.02, 3.0), (0.0, 1.0)])
def test_rounding_and_single_requests_are_no_fault(kit: Any, share: float, excess: float) -> None:
    assert told(heard(kit, share, excess)) == []


def test_the_count_survives_a_restart(kit: Any) -> None:
    assert told(heard(kit, 0.5, 3.0, restart=True)) == told(heard(kit, 0.5, 3.0))
