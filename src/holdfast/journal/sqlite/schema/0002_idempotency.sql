-- Remembered idempotency keys: a bounded window, oldest out first.

CREATE TABLE idempotency (
    id           INTEGER PRIMARY KEY,   -- dense, in the order in which keys were remembered
    hash         BLOB    NOT NULL UNIQUE,
    partition_id INTEGER NOT NULL,
    record       INTEGER NOT NULL,   -- the record's offset
    seq          INTEGER NOT NULL,
    key_epoch    INTEGER NOT NULL,
    stamp        BLOB    NOT NULL
) STRICT;
