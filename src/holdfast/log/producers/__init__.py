"""Producers with sequence numbers of their own: what is sent again is written once."""
