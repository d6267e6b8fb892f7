"""Segments: immutable Parquet files that take over from the journal's tail, and the manifest that lists them.

`segment`, `content`, `file_*` and `classify` know nothing of the journal, so that Spark's executors can use them;
`roller`, `retention` and `reconcile` work on an open log.
"""
