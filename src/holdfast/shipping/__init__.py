"""Shipping: what is durable here becomes durable on an object store, in order, create-only, by one thread.

Read first what decides and touches nothing: `settings` · `batching` (when a batch goes) · `ordering` (which batches
count, and who lets go of their memory) · `backoff` (how long a failing batch waits) · `alarm` (how an outage is
reported) · `events` (what subscribers see) · `cost` (what it costs). Then what acts: `remote` (the store as the event
loop sees it) and `s3` (connections, HTTP and signatures for S3).
"""
