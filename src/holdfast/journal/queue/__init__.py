"""What waits for a commit: records in groups, the promises of whoever brought them, and how much may wait."""
