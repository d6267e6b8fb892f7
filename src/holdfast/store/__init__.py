"""The store: where objects lie, on a local directory or an object store."""
