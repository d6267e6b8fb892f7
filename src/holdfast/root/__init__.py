"""One log's root on a store: its format, its manifests, its tail. For its readers and writers."""
