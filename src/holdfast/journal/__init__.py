"""The journal: appends become durable here, in groups, in order, once.

It is closed. Others use `journal` (all of it as one object), `create` (a new database), `inspected_database` (one in
any state), tickets, operations and a partition's live state. Contracts in pyproject.toml forbid the rest.

Read in the order of the data: `commit/queue` (what waits for the writer) · `commit/group`, `commit/ticket` (a group,
and who waits for it) · `commit/writer`, `commit/staging` (groups become commits) · `state/` (what is known in memory) ·
`backend` and `sqlite/` (where it is stored) · `recovery` (opening) · `entry_reader` (reading back).
"""
