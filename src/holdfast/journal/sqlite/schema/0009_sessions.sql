-- Sessions of producers: what was written once is answered again. Counted and added up in the log's own row; what is zero
-- and empty is in no stamp, so rows that were stamped before stay valid.

ALTER TABLE log ADD COLUMN sessions    INTEGER NOT NULL DEFAULT 0;     -- rows of the table below
ALTER TABLE log ADD COLUMN session_sum BLOB    NOT NULL DEFAULT x'';   -- what they add up to; empty = there is none

-- With rowids: sessions that are used together lie together, and a row that is replaced leaves the index as it is.
CREATE TABLE sessions (
    name      BLOB    NOT NULL PRIMARY KEY,   -- of a producer, or of a process that shares the log
    last      INTEGER NOT NULL,               -- the highest sequence number that was stored
    floor     INTEGER NOT NULL,               -- answers below it were received, or are forgotten
    used_us   INTEGER NOT NULL,
    answers   BLOB    NOT NULL,               -- from the floor on
    key_epoch INTEGER NOT NULL                -- under which the row is weighed; 0 = without a key
) STRICT;
