"""Reading a root: what is settled on a store, without the log that wrote it.

Spark's driver and executors and `holdfast.read` are built on this. It imports no writer: not the log, not the
database, not the shipper. Everything it returns is proved: manifests link by link, files by the hashes in manifests.
"""
