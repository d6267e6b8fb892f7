"""What the store does not need any more: commit batches that are settled, segments that are retired."""
