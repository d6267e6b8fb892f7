"""The bars of the hot paths in one run: what to look at before and after a change to append, commit, seal or read.

Parts, each a module of its own that says what is measured and what would be unfair (`--only` runs some of them):

- `journal`: 64 tasks, a window of 256 tickets and single appends, beside SQLite's own commits (`bench.journal`);
- `append`: typed batches of 10 000 rows, beside an Arrow IPC file with fdatasync (`bench.seal_speed`);
- `read`: sealed records in order, raw and typed, beside pyarrow on the same files (`bench.read_speed`);
- `beside`: appends beside a roller that never rests, beside the same appends alone (`bench.append_beside_seal`).

Rivals are not here (`script/bench journal`). Run it on a machine that does nothing else: p99 beside sealing is the
writer's wait for a core, and typed reading uses all of them, so a busy neighbour changes those ratios most.
"""

from __future__ import annotations

import pyarrow as pa

from bench import append_beside_seal, journal, measure, read_speed, seal_speed
from bench.measure import Options, Part

PARTS = {
    "journal": journal.hot,
    "append": seal_speed.appends,
    "read": read_speed.sequential,
    "beside": append_beside_seal.part,
}


def main(options: Options) -> None:
    """Run the parts that are asked for, print tables and verdicts, keep the samples."""
    names = measure.wanted(PARTS, options)
    done: list[Part] = []
    with measure.workspace(options) as directory:
        facts = {**measure.machine(directory), "pyarrow": pa.__version__, "arrow_threads": pa.cpu_count()}
        for name in names:
            part = PARTS[name](directory, options)
            print(measure.report(part), "", sep="\n", flush=True)
            done.append(part)
    measure.conclude("speed", done, facts)
