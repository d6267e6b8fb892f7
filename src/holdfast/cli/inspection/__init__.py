"""What `inspect`, `status` and `topics` show: rows of a log or of a root, read whatever state they are in."""
