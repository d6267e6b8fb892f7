"""The two lanes to the store, commit batches and segments: cut, sent, retried, acknowledged in order."""
