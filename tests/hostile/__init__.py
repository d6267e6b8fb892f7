"""What somebody can do who may write to a root or a directory: built, spoiled and judged by separate parts."""
