"""Many small segments of a root into few large ones: planned, rewritten, proved, swapped in by one object.

Works on a root from any process, without the log that ships there; Spark's executors rewrite with the same code.
"""
