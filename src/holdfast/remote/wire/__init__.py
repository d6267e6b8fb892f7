"""What travels between a client and a server, as values and as bytes."""
