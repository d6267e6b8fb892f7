"""Untrusted Parquet files, parsed in Python before Arrow's C++ may see them."""
