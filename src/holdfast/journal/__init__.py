"""The journal: appends become durable here, in groups, in order, once.

Read in the order of the data: `settings` · `columns` and `frame` (records as bytes) · `entry` (a row and its proof) ·
`signal`, `group`, `ticket` (waiting) · `queue` (what waits for the writer) · `partition` (heads) ·
`writer` (the actor) · `backend`, `sqlite`, `schema/` (where it is stored) · `recovery` (open) · `reader` ·
`journal` (all of it as one object).
"""
