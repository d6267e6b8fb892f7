-- Shipping: which store the log is on, and how far. Marks here may lag behind the truth by one commit; never ahead.

CREATE TABLE shipping (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    root             TEXT    NOT NULL,   -- the store's address
    owner            BLOB    NOT NULL,   -- who this directory is to the store: in all its claims
    epoch            INTEGER NOT NULL,   -- its newest claim
    shipped_seq      INTEGER NOT NULL,   -- entries up to this one are on the store, with nothing missing
    copy             INTEGER NOT NULL,   -- 1 = restored as a copy: it never ships
    key_epoch        INTEGER NOT NULL,
    stamp            BLOB    NOT NULL
) STRICT;

CREATE TABLE shipments (
    partition_id     INTEGER PRIMARY KEY,
    slots            INTEGER NOT NULL,   -- manifest objects on the store: one per segment and one per takeover
    settled_segments INTEGER NOT NULL,   -- segments whose manifest object the store has acknowledged
    settled_offset   INTEGER NOT NULL,   -- everything below lies in those
    shipped_offset   INTEGER NOT NULL,   -- everything below is on the store, in segments or commit batches
    key_epoch        INTEGER NOT NULL,
    stamp            BLOB    NOT NULL
) STRICT;
