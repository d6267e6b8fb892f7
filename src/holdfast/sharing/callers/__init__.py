"""Processes that ask the owner of a log and do not share the log; and an owner that has only such."""
