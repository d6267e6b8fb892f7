"""From a call to a commit: the queue, the groups in it, the writer thread, and the tickets that wait for it."""
