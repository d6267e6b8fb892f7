"""`python -m bench <name> [--quick] [--full] [--rounds N] [--only PART]` runs `main(options)` of `bench/<name>.py`.

The exit code is 0 when the bench ran, whether its bars were reached or not; 1 when it failed; 2 when it was
called wrongly.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from bench.measure import Options

ROUNDS, SECONDS = 5, 2.0
ROUNDS_QUICK, SECONDS_QUICK = 3, 1.0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure holdfast and its rivals.")
    parser.add_argument("name", help="the bench to run, for example journal or segments")
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds of {SECONDS_QUICK:g} s")
    parser.add_argument("--full", action="store_true", help="also what takes many minutes, such as a million segments")
    parser.add_argument("--rounds", type=int, help=f"at least three; {ROUNDS} unless told")
    parser.add_argument("--seconds", type=float, help=f"length of one sample; {SECONDS:g} unless told")
    parser.add_argument("--directory", type=Path, help="where to write, on the disk to be measured")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="of speed, tables, pipeline, executions: this part alone",
    )
    return parser


def options_of(given: argparse.Namespace) -> Options:
    rounds, seconds = (ROUNDS_QUICK, SECONDS_QUICK) if given.quick else (ROUNDS, SECONDS)
    return Options(
        quick=given.quick,
        rounds=rounds if given.rounds is None else given.rounds,
        seconds=seconds if given.seconds is None else given.seconds,
        directory=given.directory,
        full=given.full,
        only=tuple(given.only),
    )


def main_of(name: str) -> Callable[[Options], None] | None:
    """The `main` of the bench of that name, or None when there is no such bench."""
    if not name.isidentifier() or importlib.util.find_spec(f"bench.{name}") is None:
        return None
    module = importlib.import_module(f"bench.{name}")
    return cast("Callable[[Options], None] | None", getattr(module, "main", None))


def stop(_signal: int, _frame: object) -> None:
    """Leave through the `finally` clauses, so that no server stays behind."""
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    parser = arguments()
    given = parser.parse_args()
    try:
        options = options_of(given)
    except ValueError as refusal:
        parser.error(str(refusal))
    run = main_of(given.name)
    if run is None:
        parser.error(f"no such bench; name={given.name}")
    signal.signal(signal.SIGTERM, stop)
    run(options)


if __name__ == "__main__":
    main()
