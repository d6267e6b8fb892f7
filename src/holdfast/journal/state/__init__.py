"""What an open journal knows in memory: partitions, topics, spaces, and how far the store is."""
