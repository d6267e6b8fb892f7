-- What shipping remembers about itself: that the log was taken over, and what is wrong. What is zero or empty is in no
-- stamp, so rows that were stamped before stay valid.

ALTER TABLE shipping ADD COLUMN root_format INTEGER NOT NULL DEFAULT 0;   -- layout of the store's root; 0 = not known yet
ALTER TABLE shipping ADD COLUMN fenced      INTEGER NOT NULL DEFAULT 0;   -- the claim that took the log over; 0 = none
ALTER TABLE shipping ADD COLUMN alarm       TEXT    NOT NULL DEFAULT '';  -- what holds shipping up
ALTER TABLE shipping ADD COLUMN ended       TEXT    NOT NULL DEFAULT '';  -- why it ended for good
ALTER TABLE shipping ADD COLUMN last_error  TEXT    NOT NULL DEFAULT '';  -- what the store said last when it failed
