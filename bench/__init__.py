"""Benchmarks: `python -m bench NAME`, or `script/bench`."""
