"""`slodrift replay`: the judge over recorded telemetry, to try a policy on history before it is enforced."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Annotated

import typer

from schemas.errors import SourceError
from schemas.policy_file import Policy, load_policy
from schemas.results import Result, Summary, encode_line
from streams.framing import PoolRows
from streams.judge import PoolJudge
from streams.labels import load_labels
from streams.replay import Judge, Replay
from streams.replay_compare import Tally
from streams.replay_report import RejectFile, print_results, print_summary, warnings_of
from streams.report_html import write_report
from streams.report_trace import PoolTrace, TracedJudge
from streams.series import SeriesJudge
from streams.sources.inputs import Inputs
from streams.sources.merge import Slice

__all__ = ["run"]

_FLUSH_LINES = 512


def run(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="JSONL, CSV or Parquet, .gz and .zst too; - is stdin.")],
    policy: Annotated[str | None, typer.Option(help="Policy file [default: the built-in one].")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, in order of event time.")] = False,
    column_map: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FIELD=COLUMN,...", help="CSV, Parquet: ts=timestamp,ttft_s=value,node=:n1"),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Another policy file, to compare with: both judge the same events.")] = None,
    labels: Annotated[str | None, typer.Option(help="Labelled incidents, to score the policy against.")] = None,
    out: Annotated[str | None, typer.Option(help="Write a report here: one HTML file with charts of every series.")] = None,
    rejects: Annotated[str | None, typer.Option(help="Write every refused event with its bytes here (JSON lines).")] = None,
) -> None:
    """Judge recorded telemetry, with time from the events; the same input and policy give the same output."""
    chosen, other = load_policy(policy), load_policy(against) if against else None
    incidents = load_labels(labels, files) if labels else None
    inputs = Inputs(files, column_map or (), salvage=True)
    both = [chosen] if other is None else [chosen, other]
    slice_s, lateness_s = min(map(slice_s_of, both)), max(map(lateness_s_of, both))
    with ExitStack() as stack:
        refused = stack.enter_context(RejectFile(rejects))
        traces: dict[str, PoolTrace] | None = None if out is None else {}
        replay = Replay(judges_of(chosen, inputs, traces), slice_s, lateness_s, refused.add, n_cells_of(chosen, inputs))
        tally = Tally(chosen.source, chosen.version, incidents)
        slices = inputs.slices(slice_s, lateness_s)
        rival = None
        if other is not None:
            rival = Tally(other.source, other.version, incidents)
            slices = _also(slices, Replay(judges_of(other, inputs), slice_s, lateness_s, None, n_cells_of(other, inputs)), rival)
        results = tally.noted(replay.run(slices))
        try:
            if as_json:
                _write_json(results)
            else:
                print_results(results)
            summary = _summary(replay, inputs, tally, rival)
            if out is not None and traces is not None:
                write_report(out, summary, chosen, [traces[pool] for pool in sorted(traces)], files)
            if as_json:
                _write_json([summary])
            else:
                print_summary(summary, inputs.stats, chosen, inputs.cadence_s)
        except BrokenPipeError:  # the reader has seen enough: `... | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return
    unjudged = sum(judge.late for judge in replay.judges.values())
    for warning in warnings_of(inputs.stats, refused, lateness_s, unjudged):
        print(f"slodrift: {warning}", file=sys.stderr)
    if inputs.damaged:  # judged as far as it goes, and no success
        raise SourceError("; ".join(inputs.damaged))


def judges_of(policy: Policy, inputs: Inputs, traces: dict[str, PoolTrace] | None = None) -> Callable[[str, PoolRows], Judge]:
    """Makes the judge of a pool under `policy`: of requests, or of an aggregated series if that is what `inputs` hold.

    With `traces`, each judge leaves its own there.
    """

    def judge_for(pool: str, rows: PoolRows) -> Judge:
        settings = policy.for_pool(pool)
        judge: PoolJudge | SeriesJudge = (
            SeriesJudge(pool, settings, inputs.cadence_s[pool])
            if pool in inputs.cadence_s
            else PoolJudge(pool, settings, policy_version=policy.version)
        )
        if traces is None:
            return judge
        traces[pool] = PoolTrace(pool, settings)
        return TracedJudge(judge, traces[pool])

    return judge_for


def n_cells_of(policy: Policy, inputs: Inputs) -> Callable[[str], int]:
    """How many cells a pool has; aggregated series are judged whole."""
    return lambda pool: 1 if pool in inputs.cadence_s else policy.cells_of(pool)


def slice_s_of(policy: Policy) -> float:
    """Slices as long as the shortest tick of the policy."""
    return min(policy.for_pool(entry).tick_s for entry in ("*", *policy.pools))


def lateness_s_of(policy: Policy) -> float:
    """The longest lateness of the policy."""
    return max(policy.for_pool(entry).lateness_s for entry in ("*", *policy.pools))


def _also(slices: Iterator[Slice], rival: Replay, tally: Tally) -> Iterator[Slice]:
    """The same slices, which `rival` judges too."""
    for part in slices:
        for result in rival.feed(part):
            tally.add(result)
        yield part
    for result in rival.end():
        tally.add(result)


def _write_json(results: Iterable[Result]) -> None:
    out, lines = sys.stdout.buffer, list[bytes]()
    for result in results:
        lines.append(encode_line(result))
        if len(lines) >= _FLUSH_LINES:
            out.write(b"\n".join(lines) + b"\n")
            lines.clear()
    if lines:
        out.write(b"\n".join(lines) + b"\n")
    out.flush()


def _summary(replay: Replay, inputs: Inputs, tally: Tally, rival: Tally | None) -> Summary:
    return Summary(
        events=sum(stats.events for stats in inputs.stats),
        rejected=replay.rejected,
        ticks=replay.ticks,
        pools=replay.pool_summary(),
        labels=tally.labels(),
        against={} if rival is None else {"this": tally.summary(rival), "other": rival.summary(tally)},
    )
