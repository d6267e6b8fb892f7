-- Segments: the manifest, how far each partition is sealed, schemas of typed topics, retention policies.
-- All counters start at zero, and rows that were stamped before stay valid: what is zero is not in their stamps.

ALTER TABLE log ADD COLUMN segments INTEGER NOT NULL DEFAULT 0;   -- rows of the manifest
ALTER TABLE log ADD COLUMN schemas  INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log ADD COLUMN policies INTEGER NOT NULL DEFAULT 0;

ALTER TABLE entries ADD COLUMN schema BLOB NOT NULL DEFAULT x'';  -- fingerprint of a typed entry's schema; empty = raw

CREATE TABLE watermarks (
    partition_id  INTEGER PRIMARY KEY,
    segments      INTEGER NOT NULL,   -- sealed so far; the newest has number segments - 1
    sealed_offset INTEGER NOT NULL,   -- everything below lies in segments
    chain         BLOB    NOT NULL,   -- chain value of the newest
    first_segment INTEGER NOT NULL,   -- the oldest that retention has left
    first_offset  INTEGER NOT NULL,   -- and where it begins
    key_epoch     INTEGER NOT NULL,
    stamp         BLOB    NOT NULL
) STRICT;

CREATE TABLE segments (
    partition_id  INTEGER NOT NULL,
    number        INTEGER NOT NULL,
    first_offset  INTEGER NOT NULL,
    rows          INTEGER NOT NULL,
    size          INTEGER NOT NULL,   -- of the file
    time_min      INTEGER NOT NULL,
    time_max      INTEGER NOT NULL,
    low           INTEGER NOT NULL,   -- range of times over this and some segments before it:
    high          INTEGER NOT NULL,   -- a tree that finds times without a scan
    sha256        BLOB    NOT NULL,
    content       BLOB    NOT NULL,
    footer        BLOB    NOT NULL,
    chain         BLOB    NOT NULL,
    schema        BLOB    NOT NULL,   -- fingerprint; zeros = raw
    key_id        TEXT    NOT NULL,   -- empty = plain
    epoch         INTEGER NOT NULL,
    sealed_us     INTEGER NOT NULL,
    state         INTEGER NOT NULL,   -- 1 live, 2 expiring, 3 expired, 4 lost
    key_epoch     INTEGER NOT NULL,
    stamp         BLOB    NOT NULL,
    PRIMARY KEY (partition_id, number)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX segments_by_offset ON segments (partition_id, first_offset);
CREATE INDEX segments_by_state ON segments (state, partition_id, number) WHERE state != 1;

CREATE TABLE schemas (
    topic_id      INTEGER NOT NULL,
    version       INTEGER NOT NULL,   -- 1, 2, 3 … per topic
    fingerprint   BLOB    NOT NULL,
    definition    BLOB    NOT NULL,   -- an Arrow schema, serialized
    created_us    INTEGER NOT NULL,
    key_epoch     INTEGER NOT NULL,
    stamp         BLOB    NOT NULL,
    PRIMARY KEY (topic_id, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE policies (
    topic_id      INTEGER PRIMARY KEY,
    bytes_max     INTEGER NOT NULL,   -- 0 = no limit, as for the other two
    age_max_us    INTEGER NOT NULL,
    records_max   INTEGER NOT NULL,
    key_epoch     INTEGER NOT NULL,
    stamp         BLOB    NOT NULL
) STRICT;
