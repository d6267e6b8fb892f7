"""What `inspect`, `status` and `topics` show of a log or of a root, in whatever state it is."""
