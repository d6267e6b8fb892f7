-- The journal: one row about the log, one per ownership, key epoch, topic, partition head and entry.
-- Integers are INTEGER and bytes are BLOB throughout; STRICT tables, so that '007' stays '007'.

CREATE TABLE log (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    log_id      BLOB    NOT NULL,
    created_us  INTEGER NOT NULL,
    keyed       INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,   -- the present ownership; every commit proves that it still is
    key_epochs  INTEGER NOT NULL,   -- how many rows the other tables have: what is deleted is missed
    topics      INTEGER NOT NULL,
    partitions  INTEGER NOT NULL,
    entries     INTEGER NOT NULL,
    next_seq    INTEGER NOT NULL,
    groups      INTEGER NOT NULL,   -- group commits so far
    keys        INTEGER NOT NULL,   -- idempotency keys ever remembered
    heads       BLOB    NOT NULL,   -- the sum over all heads: none can be put back alone
    key_epoch   INTEGER NOT NULL,   -- under which the stamp was made; 0 = without keys
    stamp       BLOB    NOT NULL
) STRICT;

CREATE TABLE epochs (
    number      INTEGER PRIMARY KEY,
    opened_us   INTEGER NOT NULL,
    pid         INTEGER NOT NULL,
    key_epoch   INTEGER NOT NULL,
    stamp       BLOB    NOT NULL
) STRICT;

CREATE TABLE key_epochs (
    number      INTEGER PRIMARY KEY,
    scheme      TEXT    NOT NULL,
    key_id      TEXT    NOT NULL,
    salt        BLOB    NOT NULL,
    commitment  BLOB    NOT NULL,
    stamp       BLOB    NOT NULL
) STRICT;

CREATE TABLE topics (
    id          INTEGER PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    partitions  INTEGER NOT NULL,
    created_us  INTEGER NOT NULL,
    key_epoch   INTEGER NOT NULL,
    stamp       BLOB    NOT NULL
) STRICT;

CREATE TABLE heads (
    partition_id INTEGER PRIMARY KEY,
    topic_id     INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    next_offset  INTEGER NOT NULL,
    link         BLOB    NOT NULL,   -- digest of the last entry
    key_epoch    INTEGER NOT NULL,
    stamp        BLOB    NOT NULL,
    UNIQUE (topic_id, number)
) STRICT;

CREATE TABLE entries (
    seq          INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    count        INTEGER NOT NULL,
    group_number INTEGER NOT NULL,
    kind         INTEGER NOT NULL,
    codec        INTEGER NOT NULL,
    key_epoch    INTEGER NOT NULL,
    time_min     INTEGER NOT NULL,
    time_max     INTEGER NOT NULL,
    link         BLOB    NOT NULL,   -- digest of the partition's entry before this one
    digest       BLOB    NOT NULL,
    body         BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX entries_by_offset ON entries (partition_id, first_offset);
