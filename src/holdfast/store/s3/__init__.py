"""S3 and its kin, in a client of our own, for every verb.

Pure: `places` (where a root is), `redirects` (where an answer may send us), `answers` (what it means), `listing` (XML),
`signing`. Shared: `endpoint_state` (what is known and counted), `http` (one exchange), `client` (the verbs). On a loop:
`connections`, `async_pool`, `async_store`. For threads: `blocking_pool`, `s3_store`.
"""
