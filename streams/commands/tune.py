"""`slodrift tune`: detection settings for a wanted rate of false alarms, from recorded history."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer

from schemas.errors import ConfigError, SinkError
from schemas.policy import PoolPolicy
from schemas.policy_file import load_policy
from streams.commands.replay import lateness_s_of, slice_s_of
from streams.labels import load_labels
from streams.tune.fragment import fragment
from streams.tune.history import PoolHistory, replay_history
from streams.tune.propose import propose

__all__ = ["run"]


def run(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Healthy history: JSONL, CSV or Parquet, .gz and .zst too.")
    ],
    false_alarms_per_day: Annotated[float, typer.Option(help="Wanted rate of each series, a node's latency.")],
    policy: Annotated[str | None, typer.Option(help="Present policy file [default: the built-in one].")] = None,
    labels: Annotated[str | None, typer.Option(help="Labelled incidents: times that are not healthy.")] = None,
    out: Annotated[str | None, typer.Option(help="Write the policy here [default: to standard output].")] = None,
    column_map: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=COLUMN,...", help="CSV, Parquet: ts=timestamp,ttft_s=value")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="The proposals as one JSON object instead of a policy.")] = False,
) -> None:
    """Replay healthy history, see how high the evidence rises, and write a policy with the settings for the wanted rate of false
    alarms and what the history can say about it. Exit code 1 when some pool gets no proposal.
    """
    if not 0 < false_alarms_per_day < float("inf"):
        raise ConfigError(f"--false-alarms-per-day {false_alarms_per_day:g}: it is a rate above 0, such as 0.01")
    if "-" in files:
        raise ConfigError("history may be read more than once, standard input cannot: write it to a file")
    present = load_policy(policy)
    incidents = load_labels(labels, files) if labels else []
    slice_s, lateness_s = slice_s_of(present), lateness_s_of(present)

    def replayed(policies: Mapping[str, PoolPolicy] | None) -> Mapping[str, PoolHistory]:
        found, inputs = replay_history(files, column_map or (), policies, present.for_pool, incidents, slice_s, lateness_s)
        if policies is None:
            for pool, cadence in inputs.cadence_s.items():
                print(
                    f"slodrift: {pool}: one value every {cadence:g} s, an aggregated series; tune is for requests "
                    "(series.false_alarms_per_day in the policy sets such a series)",
                    file=sys.stderr,
                )
        return found

    histories = replayed(None)
    if not histories:
        raise ConfigError(f"{', '.join(files)}: no requests in it, nothing to tune by")
    policies = {pool: present.for_pool(pool) for pool in histories}
    for pool, settings in policies.items():
        if settings.detection.method != "evidence":
            raise ConfigError(
                f"{pool} has the method {settings.detection.method}; tune sets the calibrated one, method: evidence"
            )
    proposals = propose(histories, policies, false_alarms_per_day, replayed, np.random.default_rng(seed))
    if as_json:
        content = {p.pool: {**msgspec.to_builtins(p), "supported": p.supported} for p in proposals}
        text = msgspec.json.encode(content).decode() + "\n"
    else:
        text = fragment(proposals, present.extends, files)
    if out is None:
        print(text, end="")
    else:
        try:
            Path(out).write_text(text, encoding="utf-8")
        except OSError as exc:
            raise SinkError(f"{out}: cannot be written: {exc.strerror}") from None
    for p in proposals:
        if p.why_not:
            print(f"slodrift: {p.pool}: nothing proposed: {p.why_not}", file=sys.stderr)
    if any(p.why_not for p in proposals):
        raise typer.Exit(1)
