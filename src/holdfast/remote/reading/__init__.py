"""Topics of a server, read by offsets."""
