"""Reading a root, and nothing but a root: what is settled on a store, without the log that wrote it.

Spark's driver and executors, `holdfast.read` and a restore stand on this. It imports no writer: not the log, not the
database, not the shipper. What it hands out is proved: manifests link by link, files by the hashes that manifests hold.
"""
