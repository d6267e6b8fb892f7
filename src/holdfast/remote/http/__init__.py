"""Requests to one server: where it is, how it is called, and what came back."""
