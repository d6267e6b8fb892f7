"""Logs made again: a database rebuilt from segment files, a log restored from its store."""
