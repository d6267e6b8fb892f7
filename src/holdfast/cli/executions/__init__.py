"""Executions in a terminal and as JSON."""
