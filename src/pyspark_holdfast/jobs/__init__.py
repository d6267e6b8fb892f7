"""Jobs of holdfast on Spark: each runs under `spark-submit -m`-like scripts, from the command line, and from Python."""
