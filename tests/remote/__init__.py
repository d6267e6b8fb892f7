"""Clients of a server, with real servers in processes of their own."""
