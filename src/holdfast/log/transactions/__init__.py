"""Transactions over topics, spaces and consumers of an open log."""
