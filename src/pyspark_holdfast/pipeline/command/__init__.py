"""A pipeline as a command: from a Python file, or as that file's own program."""
