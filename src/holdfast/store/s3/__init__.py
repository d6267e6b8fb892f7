"""S3 and stores like it, in a client of our own, for every verb.

Pure: `bucket_address` (where a root is), `redirects` (where an answer may send us), `answers` (what it means),
`listing` (XML), `signature_v4`. Shared: `endpoint` (what is known and counted), `http` (one exchange), `client` (the
verbs). On a loop: `connections`, `async_pool`, `async_store`. For threads: `blocking_pool`, `s3_store`.
"""
