"""Limit and rivals alone: proves the harness, and settles which client speaks for which rival.

Measured: the limit at several group sizes and every rival that is installed, with all its clients (the
bracketed ones are slower as a rule, or written in C), interleaved in the same rounds. Nothing of holdfast
runs here.
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
        measured = measure.interleave([*limits, *field.contestants, *field.natives], options)
    fastest = {name: field.fastest(name, measured) for name in field.versions}
    remarks = [*field.absent, *(client_share(measured, name, fastest[name]) for name in fastest)]
    references = [limit.name_of(measure.PRODUCERS), *fastest.values()]
    print("", measure.table(measured, references), "", *remarks, sep="\n")
    path = measure.save("rivals_only", measured, facts, remarks=remarks)
    print(f"saved as bench/results/{path.name}")


def client_share(measured: Measured, rival: str, fastest: str) -> str:
    """How much of a rival is its Python client: by CPU, and against a client in C where one was measured."""
    cores = statistics.median(sample.cores or 0.0 for sample in measured.samples[fastest])
    told = f"{rival}: fastest client is {fastest}, it uses {cores:.2f} cores"
    for native in (f"({rival}, pgbench)", f"({rival}, redis-benchmark)"):
        if native in measured.samples:
            told += f"; {native} does {measured.ratio(native, fastest):.2f} x its rows"
    return told
