"""What the store no longer needs: commit batches that are settled, segments that are retired."""
