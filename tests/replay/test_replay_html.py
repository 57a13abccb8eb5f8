"""`slodrift replay --out`: one file that needs nothing else and shows what the replay said."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detectors import drift
from detectors.view import contributions_nats
from schemas.results import Decision
from streams.cli import main
from streams.report_html import spans_of
from streams.report_svg import histogram
from streams.report_trace import COLUMNS, Curves

T0 = 1_767_225_600
POLICY = """apiVersion: slodrift/v1
kind: Policy
pools:
  "*":
    mode: enforce
    slo:
      ttft_s: {threshold: 0.4}
"""
EVIL = "<script>alert(1)</script>&\"'"


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects text and attributes."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def write_events(path: Path, pool: str, slow: bool = True) -> str:
    rng = np.random.default_rng(7)
    n = 9000
    at = np.sort(rng.uniform(0, 600, n))
    node = rng.integers(0, 4, n)
    ttft = 0.15 * rng.lognormal(0, 0.25, n)
    if slow:
        ttft[(node == 2) & (at > 400)] *= 3.5
    events = [
        {"kind": "request", "ts": T0 + t, "pool": pool, "node": f"n{i}", "outcome": "ok", "ttft_s": s}
        for t, i, s in zip(at.tolist(), node.tolist(), ttft.tolist(), strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, events)))
    return str(path)


def call(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["replay", *args])
    out, err = capfd.readouterr()
    return int(done.value.code or 0), out, err


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def test_the_report_shows_the_fault(tmp_path: Path, policy: str, capfd: pytest.CaptureFixture[str]) -> None:
    events, report = write_events(tmp_path / "e.jsonl", "p"), tmp_path / "report.html"
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps([{"pool": "p", "node": "n2", "fault": "slow", "from": T0 + 400, "to": T0 + 600}]))
    code, with_report, _ = call(
        capfd, events, "--policy", policy, "--json", "--labels", str(labels), "--against", policy, "--out", str(report)
    )
    assert code == 0
    _, without, _ = call(capfd, events, "--policy", policy, "--json", "--labels", str(labels), "--against", policy)
    assert with_report == without
    page = Page(report.read_text())
    decisions = [json.loads(line) for line in with_report.splitlines() if '"kind":"decision"' in line]
    assert decisions
    for decision in decisions:
        assert decision["reason"] in page.text
    series = re.findall(r"<summary><b>(\w+)</b> (\w+): (.*?);", report.read_text())
    assert series[0] == ("n2", "ttft_s", '<b class="bad">degraded</b>')
    assert [s for s in series if "degraded</b>" in s[2]] == series[:1]
    assert len(series) == 4
    assert page.tags.count("svg") == 2 * len(series) + 1
    assert "node_degradation" in page.text
    assert "Against 1 labelled incidents" in page.text
    assert "Two policies over the same events" in page.text


def test_it_needs_nothing_else(tmp_path: Path, policy: str, capfd: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    call(capfd, write_events(tmp_path / "e.jsonl", EVIL), "--policy", policy, "--out", str(report))
    text = report.read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert {"src", "href", "xlink:href", "onload", "onclick"} & {name for name, _ in page.attributes} == set()
    assert not re.search(r"https?:|//|@import|url\(", text)
    assert EVIL in page.text
    assert "prefers-color-scheme: dark" in text


def test_without_events_there_is_a_report_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    empty, report = tmp_path / "empty.jsonl", tmp_path / "report.html"
    empty.write_text("")
    assert call(capfd, str(empty), "--out", str(report))[0] == 0
    assert "0 events" in Page(report.read_text()).text


def test_of_an_aggregated_series_findings_are_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    values = np.random.default_rng(3).normal(0.2, 0.01, 600)
    values[500:] += 0.2
    table, report = tmp_path / "series.csv", tmp_path / "report.html"
    table.write_text("ts,ttft_s\n" + "\n".join(f"{T0 + 300 * i},{v:.5f}" for i, v in enumerate(values)))
    assert call(capfd, str(table), "--out", str(report))[0] == 0
    page = Page(report.read_text())
    assert "there is nothing to draw" in page.text
    assert "node_degradation" in page.text
    assert "svg" not in page.tags


def test_a_report_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events = tmp_path / "empty.jsonl"
    events.write_text("")
    code, _, err = call(capfd, str(events), "--out", str(tmp_path / "no" / "report.html"))
    assert code == 3
    assert "cannot be written" in err


def test_bins_add_up_to_the_divergence() -> None:
    rng = np.random.default_rng(0)
    window, base = rng.poisson(20, (50, 16)), rng.poisson(200, (50, 16)).astype(float)
    assert np.allclose(contributions_nats(window, base).sum(axis=-1), drift.kl_nats(window, base), atol=1e-12)


@pytest.mark.parametrize("edges", [np.full(15, np.nan), np.linspace(0.5, 3, 15)])
def test_histograms_of_anything_are_pictures(edges: np.ndarray) -> None:
    for window, base in ((np.zeros(16, int), np.zeros(16)), (np.full(16, 5), np.full(16, 1.0))):
        picture = histogram(base, window, contributions_nats(window, base), edges)
        assert "nan" not in picture
        assert Page(picture).tags.count("rect") == 48


def test_curves_keep_every_peak_in_bounded_memory() -> None:
    curves = Curves(("x",))
    rng = np.random.default_rng(2)
    values = rng.normal(size=3 * COLUMNS + 17).astype(np.float32)
    for t, value in enumerate(values):
        curves.add(float(t), x=np.full((2 if t > 100 else 1, 4), value))
    kept = curves.values["x"][0, 0, : curves.used]
    assert curves.used <= COLUMNS
    assert np.array_equal(np.sort(kept)[-1:], np.sort(values)[-1:])
    ends = curves.end_s[: curves.used].astype(int)
    starts = [0, *(ends[:-1] + 1)]
    assert ends[-1] == len(values) - 1
    assert np.array_equal(kept, [values[a : b + 1].max() for a, b in zip(starts, ends, strict=True)])
    assert np.isnan(curves.values["x"][1, 0, 0]) or ends[0] > 100


def test_spans_of_breakers() -> None:
    def decision(t: float, subject: str, state: Any, *, capped: bool = False) -> Decision:
        return Decision(t=t, pool="p", scope="node", subject=subject, state=state, version=(1, 0, 1), tx="x", capped=capped)

    decisions = [decision(1, "a", "OPEN"), decision(2, "b", "OPEN", capped=True), decision(5, "a", "HALF_OPEN")]
    found = spans_of([*decisions, decision(7, "a", "CLOSED"), decision(8, "c", "OPEN")], 10.0)
    assert found == {"a": [(1, 5, "OPEN"), (5, 7, "HALF_OPEN")], "c": [(8, 10.0, "OPEN")]}
