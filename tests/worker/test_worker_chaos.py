"""Judges killed, ended and started at random while telemetry flows: the decisions are those of one undisturbed replay."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from schemas.results import Decision
from schemas.topics import FRAMES

pytestmark = [pytest.mark.embedded, pytest.mark.slow]

SECONDS = 40.0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1])
def test_kills_terms_and_joins_change_no_decision(site: Any, story: Any, wait_until: Callable[..., Any], seed: int) -> None:
    chance, pause = random.Random(seed), threading.Event()
    frames, sent = story.frames(), 0
    workers: list[Any] = []

    def start() -> None:
        workers.append(site.worker("judge", story.policy, idle_s="3600", snapshot_s="1"))
        workers[-1].spawn()

    def alive() -> list[Any]:
        return [w for w in workers if w.process.poll() is None]

    start()
    start()
    began = time.monotonic()
    disturb_at = began + 5
    try:
        while (passed := time.monotonic() - began) < SECONDS:
            due = int(len(frames) * min(1.0, passed / (0.9 * SECONDS)))
            site.produce(frames[sent:due])
            sent = due
            if time.monotonic() > disturb_at:
                disturb_at += chance.uniform(3, 6)
                what = chance.choice(["kill", "end", "start"])
                if what == "start" or len(alive()) < 2:
                    start()
                elif what == "kill":
                    chance.choice(alive()).kill()
                else:
                    code, took_s = chance.choice(alive()).terminate()
                    assert code in (0, -15), "-15: it was still importing"
                    assert took_s < 10
            pause.wait(0.1)
        site.produce(frames[sent:])
        if not alive():
            start()
        wait_until(lambda: site.committed(site.settings.judge_group, FRAMES.name) == site.ends(FRAMES.name), "commits", 90)
        made = [msgspec.json.decode(line, type=Decision) for line in site.decisions()]
    finally:
        for worker in alive():
            worker.terminate()
    expected = [msgspec.json.decode(line, type=Decision) for line in story.replayed]
    once: dict[str, Decision] = {}
    for decision in made:  # of a replaced owner's void decision and its successor's equal one, the later counts
        once[decision.tx] = decision
    blank = [msgspec.structs.replace(d, version=(1, 0, d.version[2])) for d in once.values()]
    assert blank == expected
    assert {w.process.poll() for w in workers} <= {0, -9, -15}, [
        w.said[-500:] for w in workers if w.process.poll() not in (0, -9, -15)
    ]
