-- What an idempotency key stands for: a repeat with anything else is refused. What is empty is in no stamp, so rows that
-- were stamped before stay valid.

ALTER TABLE idempotency ADD COLUMN digest BLOB NOT NULL DEFAULT x'';   -- concealed in a log with keys; empty = not known
