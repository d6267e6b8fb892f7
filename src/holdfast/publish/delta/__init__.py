"""The Delta format: its types, its actions, its log."""
