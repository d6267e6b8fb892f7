"""S3 and its kin, in a client of our own, for every verb.

Pure: `places` (where a root is), `redirects` (where an answer may send us), `answers` (what it means), `listing` (XML),
`signing`. Shared: `bearings` (what is known and counted), `http` (one exchange), `client` (the verbs). On a loop:
`connections`, `pool`, `remote`. For threads: `blocking`, `store`.
"""
