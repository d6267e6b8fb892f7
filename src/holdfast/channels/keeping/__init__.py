"""How channels are kept: the port for backends, the snapshot, its stored form, and the backend in a log."""
