"""Topics as tables: the format at native speed, publishing, compaction, and segments that are fetched ahead.

Each part has a module of its own that says what is measured and what would be unfair, and runs alone with `--only`:

- `queries`: `format("holdfast")` as users write it, beside `spark.read.parquet` on the same files;
- `publish`: topics as Delta tables, and Polars on one beside Polars on the bare files;
- `compact`: compaction beside Spark's own `repartition`, and reading before and after;
- `prefetch`: segments from an S3 server, fetched ahead of the reader and one after the other.
"""

from __future__ import annotations

from bench import parts
from bench.measure import Options

PARTS = {
    "queries": "bench.table_queries",
    "publish": "bench.publish_speed",
    "compact": "bench.compact_speed",
    "prefetch": "bench.store_prefetch",
}


def main(options: Options) -> None:
    """Run all parts, or those that were asked for, and print all bars."""
    parts.run_all(PARTS, options)
