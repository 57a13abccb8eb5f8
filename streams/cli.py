"""The command line: `slodrift COMMAND`. Exit codes: 0 fine, 1 something was found or did not happen, 2 usage or
configuration, 3 a broker, database or server cannot be reached.

A command is one module in `streams/commands` with a function `run`; only the module that is asked for is imported.
"""

from __future__ import annotations

import importlib
import os
import sys

import typer

from schemas.errors import ConfigError, SinkError, SlodriftError, SourceError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, str] = {
    "demo": "streams.commands.demo",
    "replay": "streams.commands.replay",
    "compare": "streams.commands.compare",
    "tune": "streams.commands.tune",
    "simulate": "streams.commands.simulate",
    "policy": "streams.commands.policy",
    "worker": "streams.commands.worker",
    "framer": "streams.commands.framer",
    "topics": "streams.commands.topics",
    "migrate": "streams.commands.migrate",
    "explain": "streams.commands.explain",
    "acl": "streams.commands.acl",
    "plan": "streams.commands.plan",
    "audit": "streams.commands.audit",
    "override": "streams.commands.override",
    "key": "streams.commands.key",
    "bench": "streams.commands.bench",
}
"""Command name to module; a module has `run`, or a typer `app` when it has sub-commands."""

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1, unless they are set: a worker is planned as one core, and threads that wait for the next small product spin. A tick
of 30,000 series took twice the CPU with two of them, and as long by the wall. numpy reads these when it is imported."""


def _app(names: list[str]) -> typer.Typer:
    app = typer.Typer(
        name="slodrift", help="Watches a GPU inference fleet for service-level drift.", no_args_is_help=True,
        add_completion=False, pretty_exceptions_enable=False,
    )  # fmt: skip

    @app.callback()
    def root() -> None:
        """Watches a GPU inference fleet for service-level drift and decides what a circuit breaker should do."""

    for name in names:
        module = importlib.import_module(COMMANDS[name])
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(module.run)
    return app


def main(argv: list[str] | None = None) -> None:
    """Run the command in `argv` (default: the process arguments) and exit with its code."""
    for name in _BLAS_THREADS:
        os.environ.setdefault(name, "1")
    args = sys.argv[1:] if argv is None else argv
    wanted = next((a for a in args if not a.startswith("-")), None)
    names = [wanted] if wanted in COMMANDS else list(COMMANDS)
    try:
        _app(names)(args)
    except ConfigError as exc:
        _fail(exc, 2)
    except (SourceError, SinkError) as exc:
        _fail(exc, 3)
    except SlodriftError as exc:
        _fail(exc, 1)


def _fail(exc: Exception, code: int) -> None:
    print(f"slodrift: {exc}", file=sys.stderr)
    sys.exit(code)
