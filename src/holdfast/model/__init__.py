"""The shapes: record, entry, segment, schema and the rows that describe them. Values and their bytes, no I/O."""
