"""Messages as bytes: two dialects, their filters and hashes, ids, and encryption under a shared key."""
