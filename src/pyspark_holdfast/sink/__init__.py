"""`df.write.format("holdfast")` and `writeStream`: topics that Spark writes."""
