"""Named readers whose positions live in the log: who reads which partition, and how far."""
