"""What keeps a log in shape beside its users: sealing, retention, compaction, tables, and its store."""
