"""Shipping beside what a store can do without us: sending, waiting, appending beside it, bringing it all back.

Each part has a module of its own that says what is measured and what would be unfair:

- `ship_speed`: a backlog goes to an S3 server, beside bare PUTs of the same size;
- `shipped_latency`: clients that wait for the store, beside one PUT;
- `restore_speed`: a log comes back, beside bare GETs;
- `loop_lag`: what PUTs do to the loop that they run on, beside obstore's;
- `store_reads`: GETs, ranges and listings through our own client, beside obstore;
- `append_beside_ship`: appends while everything is shipped to a directory on the same disk.

The S3 server is a SeaweedFS that the bench starts itself, on this machine: client and server share its cores, and every
core that we use is missing there. Everything is measured in one process, contestants in alternating rounds; ratios
count, figures are this machine's. `--quick` sends fewer objects: it shows that everything runs.
"""

from __future__ import annotations

import obstore

from bench import (
    append_beside_ship,
    loop_lag,
    measure,
    restore_speed,
    seaweedfs,
    ship_speed,
    shipped_latency,
    store_reads,
)
from bench.measure import Options, Part


def main(options: Options) -> None:
    """Run all parts, print tables and verdicts, keep the samples."""
    parts: list[Part] = []
    with measure.workspace(options) as directory:
        facts = {**measure.machine(directory), "obstore": obstore.__version__}
        with seaweedfs.running(directory / "seaweedfs") as server:
            parts.append(_told(ship_speed.part(directory, options, server)))
            parts.append(_told(shipped_latency.part(directory, options, server)))
            parts.append(_told(loop_lag.part(directory, options, server)))
            parts.append(_told(restore_speed.part(directory, options, server)))
            parts.append(_told(store_reads.part(directory, options, server)))
        parts.append(_told(append_beside_ship.part(directory, options)))
    measure.conclude("shipping", parts, facts)


def _told(part: Part) -> Part:
    print(measure.report(part), "", sep="\n", flush=True)
    return part
