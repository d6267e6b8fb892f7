"""What waits for a commit: records in groups, the tickets of those who brought them, and how much may wait."""
