-- Spaces: small named states that change together with appended records. Counted like segments: what is zero is in no
-- stamp, so rows that were stamped before stay valid.

ALTER TABLE log ADD COLUMN spaces INTEGER NOT NULL DEFAULT 0;   -- rows of the table below

CREATE TABLE spaces (
    id        INTEGER PRIMARY KEY,
    name      BLOB    NOT NULL UNIQUE,
    items     INTEGER NOT NULL,   -- how many there are
    sum       BLOB    NOT NULL,   -- over all of them: none can be changed, lost, added or put back alone
    key_epoch INTEGER NOT NULL,
    stamp     BLOB    NOT NULL
) STRICT;

-- With rowids: a body of some kilobytes lies in its leaf, where an index would spill it to a page of its own, and one
-- that is replaced leaves the index as it is.
CREATE TABLE space_items (
    space_id  INTEGER NOT NULL,
    key       BLOB    NOT NULL,
    number    INTEGER NOT NULL,   -- the order that the caller gives them
    key_epoch INTEGER NOT NULL,   -- under which the body is sealed; 0 = not sealed
    body      BLOB    NOT NULL,
    PRIMARY KEY (space_id, key)
) STRICT;
