"""The pipeline on Spark: writing topics, runs with nothing new, and keyed tables that change.

Each part has a module of its own that says what is measured and what would be unfair, and runs alone with `--only`:

- `sink`: `df.write.format("holdfast")`, beside Spark's own Parquet write of the same DataFrame;
- `idle`: a run with nothing new, after a short and after a ten times longer history;
- `upsert`: 100,000 changed keys into a keyed table of ten million rows, beside deltalake's merge with the same data.
"""

from __future__ import annotations

from bench import parts
from bench.measure import Options

PARTS = {"sink": "bench.sink_speed", "idle": "bench.idle_runs", "upsert": "bench.upsert_speed"}


def main(options: Options) -> None:
    """Run all parts, or those that were asked for, and print all bars."""
    parts.run_all(PARTS, options)
