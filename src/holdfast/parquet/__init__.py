"""Parquet files that anybody may have written, taken apart in Python before Arrow's C++ may see them."""
