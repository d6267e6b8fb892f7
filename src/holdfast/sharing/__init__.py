"""Many processes, one log: one of them owns it and listens on a socket in its directory, the others forward to it."""
