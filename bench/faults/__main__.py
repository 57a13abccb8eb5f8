"""`python -m bench.faults [--quick] [--json FILE] [NAME or GROUP ...]`; exit code 1 when a row does not hold."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench.faults.table import print_table, run, select, write_json
from bench.report import machine


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description="Injects faults and checks what comes of them.")
    parser.add_argument("names", nargs="*", help="faults (part of a name) or groups; all by default")
    parser.add_argument("--quick", action="store_true", help="the short version, for every change")
    parser.add_argument("--json", type=Path, help="write the table as JSON, too")
    chosen = parser.parse_args()
    faults = select(chosen.names, quick=chosen.quick)
    if not faults:
        parser.error(f"no fault is called {', '.join(chosen.names)}")
    began = time.monotonic()
    results = run(faults)
    print_table(results)
    print(f"{time.monotonic() - began:.0f} s")
    if chosen.json:
        write_json(results, chosen.json, **machine(), seconds=round(time.monotonic() - began))
    return 0 if all(r.holds for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
