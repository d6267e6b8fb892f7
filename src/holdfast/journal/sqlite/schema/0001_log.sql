-- A log's database. One row about the log itself; one per ownership, key epoch, topic, partition head and entry.
-- Integers are INTEGER and bytes are BLOB throughout; STRICT tables, so that '007' stays '007'.

CREATE TABLE log (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    log_id         BLOB    NOT NULL,
    created_us     INTEGER NOT NULL,
    keyed          INTEGER NOT NULL,
    epoch          INTEGER NOT NULL,   -- the present ownership; every commit proves that it still is
    key_epochs     INTEGER NOT NULL,   -- how many rows the other tables have: what is deleted is missed
    topics         INTEGER NOT NULL,
    partitions     INTEGER NOT NULL,
    entries        INTEGER NOT NULL,
    next_seq       INTEGER NOT NULL,
    groups         INTEGER NOT NULL,   -- group commits so far
    keys           INTEGER NOT NULL,   -- idempotency keys ever remembered
    heads          BLOB    NOT NULL,   -- the sum over all heads: none can be put back alone
    segments       INTEGER NOT NULL,   -- rows of the manifest
    schemas        INTEGER NOT NULL,
    policies       INTEGER NOT NULL,
    spaces         INTEGER NOT NULL,
    group_file     INTEGER NOT NULL,   -- where the next group may be; 0 = in no file
    group_position INTEGER NOT NULL,   -- at the earliest
    sessions       INTEGER NOT NULL,
    session_sum    BLOB    NOT NULL,   -- what they add up to; empty = there is none
    key_epoch      INTEGER NOT NULL,   -- under which the stamp was made; 0 = without keys
    stamp          BLOB    NOT NULL
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
    codec       TEXT    NOT NULL,
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

-- Bodies of entries may lie in files beside the database.
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
    link         BLOB    NOT NULL,              -- digest of the partition's entry before this one
    digest       BLOB    NOT NULL,
    body         BLOB    NOT NULL,
    schema       BLOB    NOT NULL,              -- fingerprint of a typed entry's schema; empty = raw
    file         INTEGER NOT NULL DEFAULT 0,    -- number of the file with the body; 0 = it is here
    position     INTEGER NOT NULL DEFAULT 0,
    size         INTEGER NOT NULL DEFAULT 0     -- length of a body that is in a file
) STRICT;

CREATE UNIQUE INDEX entries_by_offset ON entries (partition_id, first_offset);

-- Remembered idempotency keys: a bounded window, oldest out first.
CREATE TABLE idempotency (
    id           INTEGER PRIMARY KEY,   -- dense, in the order in which keys were remembered
    hash         BLOB    NOT NULL UNIQUE,
    partition_id INTEGER NOT NULL,
    record       INTEGER NOT NULL,      -- the record's offset
    seq          INTEGER NOT NULL,
    digest       BLOB    NOT NULL,      -- of what the key stands for; concealed in a log with keys
    key_epoch    INTEGER NOT NULL,
    stamp        BLOB    NOT NULL
) STRICT;

-- Segments: the manifest, how far each partition is sealed, schemas of typed topics, retention policies.
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

-- Shipping: which store the log is on, and how far. Marks here may lag behind the truth by one commit; never ahead.
CREATE TABLE shipping (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    root             TEXT    NOT NULL,   -- the store's address
    owner            BLOB    NOT NULL,   -- who this directory is to the store: in all its claims
    epoch            INTEGER NOT NULL,   -- its newest claim
    shipped_seq      INTEGER NOT NULL,   -- entries up to this one are on the store, with nothing missing
    copy             INTEGER NOT NULL,   -- 1 = restored as a copy: it never ships
    fenced           INTEGER NOT NULL,   -- the claim that took the log over; 0 = none
    alarm            TEXT    NOT NULL,   -- what holds shipping up
    ended            TEXT    NOT NULL,   -- why it ended for good
    last_error       TEXT    NOT NULL,   -- what the store said last when it failed
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

-- Spaces: small named states that change together with appended records.
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

-- Sessions of producers: what was written once is answered again. Counted and added up in the log's own row.
-- With rowids: sessions that are used together lie together, and a row that is replaced leaves the index as it is.
CREATE TABLE sessions (
    name      BLOB    NOT NULL PRIMARY KEY,   -- of a producer, or of a process that shares the log
    last      INTEGER NOT NULL,               -- the highest sequence number that was stored
    floor     INTEGER NOT NULL,               -- answers below it were received, or are forgotten
    used_us   INTEGER NOT NULL,
    answers   BLOB    NOT NULL,               -- from the floor on
    key_epoch INTEGER NOT NULL                -- under which the row is weighed; 0 = without a key
) STRICT;
