"""Segments beside pyarrow: sealing, appending typed batches, reading, reconciling, and what sealing costs appends.

Each part has a module of its own that says what is measured and what would be unfair:

- `seal_speed`: a tail becomes a segment, raw, encrypted and typed; typed batches are appended;
- `read_speed`: sealed records in order, as Arrow and as Python objects; single records among many segments;
- `manifest_scale`: reconcile and open with up to a hundred thousand segments, with `--full` a million;
- `append_beside_seal`: appends while the roller never rests.

Everything is measured in one process, contestants in alternating rounds; ratios count, figures are this
machine's. `--quick` makes logs small and samples half as long: it shows that everything runs, its ratios say little.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from bench import append_beside_seal, manifest_scale, measure, read_speed, seal_speed
from bench.measure import Options, Part

PARTS = (
    seal_speed.part,
    seal_speed.appends,
    read_speed.sequential,
    read_speed.points,
    manifest_scale.part,
    append_beside_seal.part,
)


def main(options: Options) -> None:
    """Run all parts, print tables and verdicts, keep the samples."""
    parts: list[Part] = []
    if options.quick:
        options = replace(options, seconds=options.seconds / 2)
    with measure.workspace(options) as directory:
        facts = {**measure.machine(directory), "pyarrow": pa.__version__, "arrow_threads": pa.cpu_count()}
        for run in PARTS:
            part = run(directory, options)
            print(measure.report(part), "", sep="\n", flush=True)
            parts.append(part)
    measure.conclude("segments", parts, facts)
