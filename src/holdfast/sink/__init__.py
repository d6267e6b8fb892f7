"""Topics that are written by batches from outside a log: the topics of Spark's sink. Knows no Spark."""
