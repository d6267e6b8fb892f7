"""Tables that a pipeline writes: Delta tables with our own committer, one commit per run. Knows no Spark."""
