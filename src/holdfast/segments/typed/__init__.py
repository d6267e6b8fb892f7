"""Rows of typed topics: as users give them, as they are stored, and as users get them back."""
