"""Stored state, proved before it is relied on: when a log is opened, read by others, or inspected."""
