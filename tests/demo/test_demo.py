"""`slodrift demo` from beginning to end, as a user runs it: exit code 0, and every step of the story with its numbers."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

STEPS = [
    r"started +Kafka \(mock cluster\) at [\d.:]+ and Redis at redis://",
    r"started +ClickHouse \(chDB engine\) has its tables",
    r"started +slodrift worker judge, slodrift framer, slodrift worker archive are running",
    r"learning +first windows of \S+",
    r"learned +\d+ series have a baseline; \w+_s of (?P<node>gpu-\d\d): P99.9 [\d.]+ s",
    r"FAULT +slow_node at (?P=node), strength [\d.]+",
    r"drift +(?P=node) \w+_s is DEGRADED: KL [\d.]+ nats \(workload -?[\d.]+, service [\d.]+\), evidence e\^[\d.]+, threshold",
    r"OPEN +(?P=node): .+ \[enforce, tx (?P<tx>[0-9a-f]{8})\]",
    r"refused +client\.allow\('(?P=node)'\) is False, [\d.]+ s after",
    r"obeyed +0 of the last \d+ requests went to (?P=node)",
    r"REPAIRED +slow_node at (?P=node) is over",
    r"HALF_OPEN +(?P=node): the open time is over",
    r"CLOSED +(?P=node): it does well with the share of its traffic that it had \(\d+ good, \d+ bad\)",
    r"probes +\d+ probes reached (?P=node), then it got its requests back",
    r"allowed +client\.allow\('(?P=node)'\) is True",
    r"obeyed +[1-9]\d* of the last \d+ requests went to (?P=node)",
    r"ClickHouse: decision_history",
    r"ClickHouse: window_history of (?P=node)",
    r"slodrift explain (?P=tx)",
    r"OPEN node (?P=node) of \S+: no request to it",
    r"  because   (?P=node): ",
    r"  evidence  ",
    r"  holds     until .+ \(hosts obey\); version \d+\.\d+\.\d+",
    r"done +",
]


@pytest.mark.embedded
@pytest.mark.timeout(240)
def test_the_story_is_told() -> None:
    began_s = time.monotonic()
    demo = subprocess.run(
        [sys.executable, "-c", "from streams.cli import main; main()", "demo"],
        capture_output=True, text=True, check=False, timeout=220,
    )  # fmt: skip
    text = demo.stdout
    assert demo.returncode == 0, text + demo.stderr
    assert "\x1b" not in text
    assert re.search("(?s)" + ".*?\n[^\n]*?".join(STEPS), text), text
    assert demo.stderr == ""
    assert time.monotonic() - began_s < 150  # 90 s on a quiet machine; tests share theirs
