"""Consumers whose members live in a server."""
