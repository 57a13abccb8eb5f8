"""`slodrift plan`: how many workers, partitions, rows and bytes a fleet needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from schemas.errors import ConfigError
from schemas.policy import Caps
from streams.plan.fleet import MAX_FRAME_ROWS, QUIET_S, ROW_BYTES, SNAPSHOT_S, USE, Fleet, Plan, plan
from streams.plan.model import Calibration, load_calibration

__all__ = ["run"]

FEW_NODES = 1 / Caps().velocity_share


def run(
    nodes: Annotated[int, typer.Option(min=1, help="Serving nodes.")],
    rps: Annotated[float, typer.Option(min=0.0, help="Requests a second of the whole fleet.")],
    pools: Annotated[int | None, typer.Option(min=1, help="Pools (default: one for every 64 nodes).")] = None,
    slis: Annotated[int, typer.Option(min=1, max=4, help="Latencies that requests report.")] = 4,
    tick_s: Annotated[float, typer.Option(min=1.0, max=60.0, help="Length of a tick, seconds.")] = 5.0,
    frame_s: Annotated[float, typer.Option(min=0.1, max=60.0, help="A node sends a frame this often, seconds.")] = 5.0,
    calibration: Annotated[
        Path | None, typer.Option(help="Coefficients of your machine, by: slodrift bench scale --write FILE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """What a fleet needs, by coefficients measured with `slodrift bench scale`, with the assumptions."""
    pools = pools or max(1, -(-nodes // 64))
    if pools > nodes:
        raise ConfigError(f"{pools} pools of {nodes} nodes: a pool has a node at least, so give fewer pools")
    coefficients = load_calibration(calibration)
    fleet = Fleet(nodes=nodes, rps=rps, pools=pools, slis=slis, tick_s=tick_s, frame_s=frame_s)
    needed = plan(fleet, coefficients)
    if as_json:
        document = {
            "fleet": msgspec.to_builtins(fleet),
            "plan": msgspec.to_builtins(needed),
            "assumptions": _assumptions(fleet, coefficients),
        }
        print(msgspec.json.encode(document).decode())
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(_table(fleet, needed))
    for line in _assumptions(fleet, coefficients):
        console.print(f"- {line}")
    if needed.cells != 1:
        console.print(f"- {_hot(fleet, needed)}")


def _hot(fleet: Fleet, needed: Plan) -> str:
    """What to do with pools that are too big for one partition."""
    need = f"a pool needs {needed.pool_cores:.2f} cores, and one partition has one"
    if needed.cells == 0:
        return f"{need}; no split into cells is enough: send fewer and larger frames, report fewer latencies, make ticks longer"
    nodes = fleet.nodes / fleet.pools / needed.cells
    said = f"{need}: split it into {needed.cells} cells (cells: {needed.cells} in the policy), {needed.cell_cores:.2f} cores each"
    small = (
        ", which is few: the cells together may then open more nodes a minute than the pool could" if nodes < FEW_NODES else ""
    )
    more = f", with caps.velocity of {needed.cells} at least" if needed.cells > Caps().velocity else ""
    return f"{said}, with {nodes:,.0f} nodes{small}{more}; the table counts them (docs/performance.md, hot pools)"


def _table(fleet: Fleet, needed: Plan) -> Table:
    table = Table("what", "needed", box=None, title=f"{fleet.nodes:,} nodes, {fleet.rps:,.0f} requests/s, {fleet.pools:,} pools",
                  title_justify="left")  # fmt: skip
    table.columns[1].justify = "right"
    for what, value in (
        ("judge workers", f"{needed.workers:,} ({needed.judge_cores:.2f} cores)"),
        ("memory of a judge", f"{needed.worker_bytes / 1e6:,.0f} MB"),
        ("partitions", f"{needed.partitions:,}"),
        ("archive, reading and thinning", f"{needed.archive_cores:.2f} cores"),
        ("frames", f"{fleet.frames_per_s:,.0f}/s of {fleet.rows_per_frame:,.1f} requests"),
        ("Kafka in (frames)", f"{needed.kafka_in_bytes_per_s / 1e6:,.2f} MB/s"),
        ("Kafka out (windows, snapshots)", f"{needed.kafka_out_bytes_per_s / 1e6:,.2f} MB/s"),
        ("ClickHouse windows", f"{needed.stored_rows_per_day / 1e6:,.1f} M rows a day"),
        ("ClickHouse hours", f"{needed.hour_rows_per_day / 1e6:,.2f} M rows a day"),
        ("ClickHouse disk", f"{needed.stored_bytes_per_day / 1e9:,.2f} GB a day"),
        ("Redis, from the judges", f"{needed.redis_per_s:,.0f} calls/s, {needed.redis_bytes_per_s / 1e6:,.2f} MB/s"),
    ):
        table.add_row(what, value)
    return table


def _assumptions(fleet: Fleet, calibration: Calibration) -> list[str]:
    stored = (
        f"a healthy fleet: quiet series are stored every {QUIET_S:g} s, {100 * _loud(calibration):.0f} % more for the others; "
        f"{ROW_BYTES['windows']:g} bytes a window and {ROW_BYTES['window_hours']:g} an hourly row after compression"
    )
    return [
        f"measured on {calibration.machine}, {calibration.date}; yours: slodrift bench scale --write FILE",
        f"a judge is planned to use {USE:g} of a core; pools of equal size, {fleet.nodes / fleet.pools:,.1f} nodes each",
        f"a node sends a frame every {fleet.frame_s:g} s, more often when it would hold more than {MAX_FRAME_ROWS} requests",
        stored,
        f"snapshots every {SNAPSHOT_S:g} s; Kafka before compression (a snapshot shrinks to about a seventh) and replication",
        f"{100 * fleet.open_ratio:g} % of the nodes not closed in what Redis holds; what hosts read of it is not counted",
    ]


def _loud(calibration: Calibration) -> float:
    return max(0.0, 12.0 * calibration.coefficients["stored_rows"]["window_rows"] - 1.0)
