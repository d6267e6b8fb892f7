-- Bodies of entries may lie in files beside the database, and the newest groups may be there alone. What is zero is in no
-- stamp, so rows that were stamped before stay valid.

ALTER TABLE log ADD COLUMN group_file     INTEGER NOT NULL DEFAULT 0;   -- where the next group may be; 0 = in no file
ALTER TABLE log ADD COLUMN group_position INTEGER NOT NULL DEFAULT 0;   -- at the earliest

ALTER TABLE entries ADD COLUMN file     INTEGER NOT NULL DEFAULT 0;     -- number of the file with the body; 0 = it is here
ALTER TABLE entries ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entries ADD COLUMN size     INTEGER NOT NULL DEFAULT 0;     -- length of a body that is in a file
