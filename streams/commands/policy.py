"""`slodrift policy`: check a policy file, and show which settings a pool gets and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from schemas.errors import ConfigError
from schemas.policy_file import PRESETS, Policy, PolicyError, load_policy, preset_settings

__all__ = ["app", "origins"]

app = typer.Typer(help="Check a policy file, or show the effective settings.", no_args_is_help=True)

File = Annotated[str, typer.Argument(metavar="FILE", help="Policy file (YAML).")]


@app.command()
def check(file: File) -> None:
    """Report every fault of FILE as file:line:col: what, why, what to do. Exit code 2 when there is one."""
    try:
        policy = load_policy(file)
    except PolicyError as exc:
        for fault in exc.faults:
            print(fault)
        noun = "fault" if len(exc.faults) == 1 else "faults"
        print(f"{file}: {len(exc.faults)} {noun}")
        raise typer.Exit(2) from None
    print(f"{file}: fine, version {policy.version}, extends {policy.extends}")
    for pattern in policy.pools or ("*",):
        pool = policy.for_pool(pattern)
        slo = ", ".join(f"{sli} {s.objective * 100:g} % within {s.threshold:g} s" for sli, s in pool.slo.items())
        print(f"  {pattern}: {pool.mode}, tick {pool.tick_s:g} s, {slo or 'no SLO: drift is reported, ejects nothing'}")


@app.command()
def show(
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="Policy file; without one, the preset.")] = None,
    pool: Annotated[str, typer.Option(help="Pool whose settings to show.")] = "*",
    preset: Annotated[str, typer.Option(help="Preset to show when there is no FILE: default or seed.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Show the effective settings of a pool, each with its origin: built-in default, preset, or line of FILE."""
    if preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}, known are {', '.join(PRESETS)}")
    policy = load_policy(file) if file else Policy(preset, {}, f"preset {preset}")
    rows = list(origins(policy, pool))
    if as_json:
        import msgspec

        print(msgspec.json.encode({name: {"value": value, "origin": origin} for name, value, origin in rows}).decode())
        return
    title = f"pool {pool}, policy {policy.version} ({policy.source})"
    columns = (Column(name, no_wrap=name != "value", overflow="fold") for name in ("setting", "value", "origin"))
    table = Table(*columns, title=title, title_justify="left")
    for name, value, origin in rows:
        table.add_row(name, "" if value is None else str(value), origin)
    Console(soft_wrap=True).print(table)


def origins(policy: Policy, pool: str) -> Iterator[tuple[str, Any, str]]:
    """(dotted setting, value, origin) of every effective setting of `pool`."""
    entries = policy.entries_for(pool)
    preset = preset_settings(policy.extends)
    effective = policy.for_pool(pool).model_dump()
    for path, value in _leaves(effective):
        origin = f"preset {policy.extends}" if _has(preset, path) else "built-in"
        for entry in entries:
            if _has(policy.pools[entry], path) and policy.tree is not None:
                origin = f"line {policy.tree.where(('pools', entry, *path))[0]}"
        yield ".".join(path), list(value) if isinstance(value, tuple) else value, origin


def _leaves(settings: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _has(settings: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(settings, Mapping) or part not in settings:
            return False
        settings = settings[part]
    return True
