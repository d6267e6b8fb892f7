"""Limit and rivals alone: proves the harness, and settles which client speaks for which rival.

Measured: the limit at several group sizes and every rival that is installed, with its slower clients and its
client in C in brackets, all interleaved in the same rounds. Nothing of holdfast runs here.
"""

from __future__ import annotations

import statistics

from bench import limit, measure, rivals
from bench.measure import Measured, Options


def main(options: Options) -> None:
    """Run, print the table and the remarks, keep the samples."""
    with measure.workspace(options) as directory, rivals.running(directory) as field:
        facts = {**measure.machine(directory), "rivals": field.versions}
        limits = [limit.contestant(directory, group) for group in limit.GROUPS]
        measured = measure.interleave([*limits, *field.contestants, *field.others], options)
    references = [limit.name_of(measure.PRODUCERS), *field.versions]
    remarks = [*field.absent, *client_shares(measured)]
    print("", measure.table(measured, references), "", *remarks, sep="\n")
    print(f"saved as bench/results/{measure.save('rivals_only', measured, facts, remarks=remarks).name}")


def client_shares(measured: Measured) -> list[str]:
    """How much of each rival is its Python client: by CPU, and by a client in C where one was measured."""
    shares = []
    for name in ("postgresql", "jetstream", "redis"):
        if name in measured.samples:
            cores = statistics.median(sample.cores or 0.0 for sample in measured.samples[name])
            shares.append(f"{name}: the client uses {cores:.2f} cores{_against_c(measured, name)}")
    return shares


def _against_c(measured: Measured, name: str) -> str:
    for tool in ("pgbench", "redis-benchmark"):
        bracketed = f"({name}, {tool})"
        if bracketed in measured.samples:
            return f"; with {tool} instead the server does {measured.ratio(bracketed, name):.2f} x the rows"
    return ""
