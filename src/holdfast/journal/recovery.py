"""Opening a journal: prove that what is stored is what was acknowledged, then take ownership.

SQLite has already undone what was not committed. What is left to prove is that nobody else changed it:
stamps of the control rows, heads that end exactly where their entries end, counters that agree with both.
A tail that is shorter than its head (lost entries) or longer (a head that was put back) is refused, located
and left untouched. Only the last entry of each partition is looked at; readers verify each entry they read.

Taking ownership is one transaction: a new epoch, a new key epoch with a fresh salt, the log's row. It is
durable before the writer seals or acknowledges anything.
"""

from __future__ import annotations

import os

import apsw

from holdfast.clock import Clock
from holdfast.crypto import chain
from holdfast.crypto.cipher import SALT_BYTES, PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.vault import PLAIN, KeyEpoch, Vault
from holdfast.errors import Corrupt, Invalid
from holdfast.journal.backend import Backend
from holdfast.journal.partition import Partition
from holdfast.journal.rows import EpochRow, HeadRow, LogRow, TopicRow, stamped
from holdfast.journal.topics import Topics

LOG_ID_BYTES = 16


class Recovered:
    """A journal's stored state, and what is wrong with it."""

    def __init__(self, row: LogRow, vault: Vault, topics: Topics, problems: list[Corrupt]) -> None:
        self.row = row
        self.vault = vault
        self.topics = topics
        self.problems = problems


def recover(
    backend: Backend, log_id: bytes | None, keyring: Keyring | None, cipher: PayloadCipher | None, clock: Clock
) -> Recovered:
    """Read and prove the stored state, in one read transaction; `log_id` is None for a log being created."""
    keyed = keyring is not None or cipher is not None
    with backend.reading() as connection:
        row = _log_row(connection)
        if row is None:
            if log_id is not None:
                raise Corrupt("the database has lost the log's own row", path=str(backend.path))
            row = LogRow(clock.random_bytes(LOG_ID_BYTES), clock.now_us(), int(keyed), 0, 1, 0, PLAIN, b"")
            return Recovered(row, Vault(row.log_id, keyring, cipher), Topics(row.log_id), [])
        _check_keyed(row, keyed)
        vault = Vault(row.log_id, keyring, cipher)
        vault.attach(lambda number: fetch_key_epoch(backend, number))
        problems: list[Corrupt] = []
        if log_id is not None and log_id != row.log_id:
            problems.append(Corrupt("the database belongs to another log", path=str(backend.path)))
        if not vault.verify(row.key_epoch, row.message(), row.stamp):
            problems.append(Corrupt("the log's own row does not match its stamp", path=str(backend.path)))
        topics = _topics(connection, backend, row, vault, problems)
        _check_tail(connection, backend, row, topics, problems)
    return Recovered(row, vault, topics, problems)


def take_ownership(backend: Backend, recovered: Recovered, clock: Clock) -> LogRow:
    """Start a new epoch; durable when this returns."""
    vault, row = recovered.vault, recovered.row
    backend.begin()
    try:
        if vault.keyed:
            key_epoch = vault.begin(backend.last_key_epoch() + 1, clock.random_bytes(SALT_BYTES))
            backend.insert_key_epoch(key_epoch)
            vault.enter(key_epoch)
        taken = stamped(row._replace(epoch=row.epoch + 1, key_epoch=vault.epoch), vault)
        backend.insert_epoch(stamped(EpochRow(taken.epoch, clock.now_us(), os.getpid(), vault.epoch, b""), vault))
        if row.epoch:
            backend.store_log(taken, row.epoch)
        else:
            backend.insert_log(taken)
        backend.commit()
    except BaseException:
        backend.rollback()
        raise
    return taken


def fetch_key_epoch(backend: Backend, number: int) -> KeyEpoch | None:
    """A stored key epoch."""
    with backend.reading() as connection:
        row = connection.execute("SELECT * FROM key_epochs WHERE number=?", (number,)).fetchone()
    return None if row is None else KeyEpoch(*row)


def _log_row(connection: apsw.Connection) -> LogRow | None:
    columns = "log_id, created_us, keyed, epoch, next_seq, groups, key_epoch, stamp"
    row = connection.execute(f"SELECT {columns} FROM log WHERE id=1").fetchone()
    return None if row is None else LogRow._make(row)


def _check_keyed(row: LogRow, keyed: bool) -> None:
    if row.keyed and not keyed:
        raise Invalid("this log is encrypted", hint="open it with keyring=Keyring.from_env(…) or from_file(…)")
    if keyed and not row.keyed:
        raise Invalid(
            "this log is not encrypted, but a key was given",
            hint="open it without keyring and cipher; encryption is chosen when a log is created",
        )


def _topics(
    connection: apsw.Connection, backend: Backend, row: LogRow, vault: Vault, problems: list[Corrupt]
) -> Topics:
    path = str(backend.path)
    topics = Topics(row.log_id)
    heads: dict[int, list[HeadRow]] = {}
    for values in connection.execute("SELECT * FROM heads ORDER BY topic_id, number"):
        head = HeadRow._make(values)
        heads.setdefault(head.topic_id, []).append(head)
        if not vault.verify(head.key_epoch, head.message(), head.stamp):
            problems.append(
                Corrupt("a head does not match its stamp", path=path, partition=head.number, offset=head.next_offset)
            )
    for values in connection.execute("SELECT * FROM topics ORDER BY id"):
        topic = TopicRow._make(values)
        own = heads.pop(topic.id, [])
        if not vault.verify(topic.key_epoch, topic.message(), topic.stamp):
            problems.append(Corrupt("a topic does not match its stamp", path=path, topic=topic.name))
        if [head.number for head in own] != list(range(topic.partitions)):
            problems.append(Corrupt("a topic has lost a partition's head", path=path, topic=topic.name))
        topics.adopt(topic, own)
    if heads:
        problems.append(Corrupt("a head belongs to no topic", path=path))
    return topics


def _check_tail(
    connection: apsw.Connection, backend: Backend, row: LogRow, topics: Topics, problems: list[Corrupt]
) -> None:
    for partition in topics.by_id.values():
        last = connection.execute(
            "SELECT first_offset, count, digest FROM entries WHERE partition_id=? ORDER BY first_offset DESC LIMIT 1",
            (partition.id,),
        ).fetchone()
        first, count, digest = last or (0, 0, chain.NO_LINK)
        if (first + count, digest) != (partition.durable, partition.link):
            problems.append(_tail_problem(backend, partition, first + count))
            # Whoever reads on regardless sees all that is there; each entry is still proved.
            partition.durable = max(partition.durable, first + count)
    last_seq = connection.execute("SELECT max(seq) FROM entries").get or 0
    if last_seq != row.next_seq - 1:
        message = f"the journal's sequence does not end where it should seq={last_seq} expected={row.next_seq - 1}"
        problems.append(Corrupt(message, path=str(backend.path)))


def _tail_problem(backend: Backend, partition: Partition, tail_end: int) -> Corrupt:
    message = (
        "the journal's tail is cut: entries below the head are missing"
        if tail_end < partition.durable
        else "a head was rolled back, or the last entry replaced"
    )
    offset = min(tail_end, partition.durable)
    return Corrupt(message, path=str(backend.path), topic=partition.topic, partition=partition.number, offset=offset)
