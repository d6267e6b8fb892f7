"""The port: what other processes ask of the one that owns a log, whatever the way there is."""
