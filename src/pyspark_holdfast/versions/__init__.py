"""What differs between the versions of Spark: one file per difference, chosen by what Spark has and not by its number.

Everything else in `pyspark_holdfast` is the same for all of them.
"""
