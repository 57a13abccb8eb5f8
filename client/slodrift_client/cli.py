"""`slodrift-client serve`: the breakers over HTTP, for gateways that are not written in Python."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

DEFAULT_BIND = "127.0.0.1:9127"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; exit code 2 for usage and configuration."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        import uvicorn

        from slodrift_client.aio import AsyncBreakerClient
        from slodrift_client.serve import make_app
    except ImportError as exc:
        parser.error(f"{exc.name} is not installed: pip install 'slodrift-client[serve]'")
    try:
        client = AsyncBreakerClient(
            _redis_url(args.redis_url_file),
            fleet=args.fleet,
            pools=args.pool,
            cells=dict(_count(word, "--cells") for word in args.cells),
            state_dir=args.state_dir,
            pool_sizes=dict(_count(word, "--pool-size") for word in args.pool_size),
            host=args.host,
            hosts=args.hosts.split(",") if args.hosts else None,
            public_keys=args.public_key or None,
        )
    except (ValueError, OSError, ImportError) as exc:
        parser.error(str(exc))
    where = {"uds": args.bind.removeprefix("unix:")} if args.bind.startswith("unix:") else _host_port(parser, args.bind)
    print(f"slodrift-client: answering on {args.bind} for {', '.join(args.pool)}", file=sys.stderr, flush=True)
    uvicorn.run(
        make_app(client), **where, log_level="warning", access_log=False, server_header=False, date_header=False,
        timeout_keep_alive=75, timeout_graceful_shutdown=5,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slodrift-client", description="Asks slodrift's breakers.")
    serve = parser.add_subparsers(required=True).add_parser(
        "serve", help="answer Envoy (ext_authz over HTTP) and NGINX (auth_request)",
        description="Answers 200, or 503 (403 for NGINX) where a breaker is open. Redis: SLODRIFT_REDIS_URL.",
    )  # fmt: skip
    add = serve.add_argument
    add("--fleet", default=os.environ.get("SLODRIFT_FLEET", "default"), help="name of the fleet [SLODRIFT_FLEET]")
    add("--pool", action="append", required=True, help="a pool to follow; may be given again")
    add("--cells", action="append", default=[], metavar="POOL=K", help="a pool that the policy splits into K cells")
    add("--bind", default=DEFAULT_BIND, help=f"HOST:PORT or unix:PATH [{DEFAULT_BIND}]; it has no access control of its own")
    add("--redis-url-file", type=Path, help="file with the address of Redis, instead of SLODRIFT_REDIS_URL")
    add("--state-dir", type=Path, help="folder of last-known-good states, for a start without Redis")
    add("--pool-size", action="append", default=[], metavar="POOL=N", help="nodes of a pool by your own configuration")
    add(
        "--public-key",
        action="append",
        type=Path,
        metavar="FILE",
        help="heads must be signed with it; the current key, then the next",
    )
    add("--host", help="name of this host, for the choice of probing hosts [the host name]")
    add("--hosts", help="names of all hosts of the pools, with commas; without, each probes at the plan's rate")
    return parser


def _redis_url(file: Path | None) -> str:
    """Not an argument: command lines are public on a host, and the address may hold a password."""
    if file is not None:
        return file.read_text(encoding="utf-8").strip()
    return os.environ.get("SLODRIFT_REDIS_URL", "redis://localhost:6379/0")


def _count(word: str, option: str) -> tuple[str, int]:
    pool, equals, number = word.rpartition("=")
    if not equals or not number.isdigit():
        raise ValueError(f"{option} {word}: write POOL=N, for example llama3-70b/eu/h100=40")
    return pool, int(number)


def _host_port(parser: argparse.ArgumentParser, bind: str) -> dict[str, str | int]:
    host, _, port = bind.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        parser.error(f"--bind {bind}: write HOST:PORT, for example {DEFAULT_BIND}, or unix:/run/slodrift.sock")
    return {"host": host.strip("[]"), "port": int(port)}
