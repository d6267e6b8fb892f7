"""Opening a log, alone or shared with other processes: `holdfast.open`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import process_lifetime
from holdfast.arguments import flag
from holdfast.clock import Clock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid
from holdfast.journal.journal import Journal
from holdfast.journal.open_journal import open_shared
from holdfast.log import open_log as alone
from holdfast.log.log import Log
from holdfast.log_directory import Directory
from holdfast.settings import Settings
from holdfast.sharing.call_handlers import set_calls
from holdfast.sharing.calls.shared_log import answer_members, compose_member
from holdfast.sharing.host import Host
from holdfast.sharing.membership import Asked, Membership, Owner
from holdfast.sharing.owner_link import SocketLink
from holdfast.sharing.process_turns import ProcessTurns
from holdfast.sharing.shared_keys import SharedKeys

_JOIN_S = 30.0


def open_log(
    path: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str] | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    keyring: Keyring | str | None = None,
    cipher: PayloadCipher | None = None,
    clock: Clock | None = None,
    read_only: bool = False,
    share: bool = False,
) -> Log:
    """Open the log in a directory, creating it if it is not there.

    With a keyring, or a cipher of your own, everything that is written is encrypted. That is decided when a log is
    created and cannot be left out later.

    One process owns a log. `share=True` lets many processes of one machine and user use it, each with the same verbs:
    one of them owns it, the others forward to it over a socket in the log's directory, and when the owner ends or is
    killed another one takes over. All of them give `share=True` and the same settings.

    `read_only=True` reads a log that another process owns, or reads what is intact in a damaged one. It
    takes no lock and changes nothing in the directory, which may be on a read-only mount or belong to another user;
    what would write is Invalid.

    With a `store` (`s3://bucket/prefix`, `file:///directory` …; also `store.url` in the settings) everything is shipped
    there in order, beside the appends. The log opens and goes on while the store is away.

    >>> import holdfast, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with holdfast.open(directory) as log:
    ...         log.topic("orders").append(b"first").offset
    0
    """
    asked = alone.asked_for(path, store, settings, keyring, cipher, clock)
    if not flag(share, "share"):
        return alone.open_asked(asked, read_only=flag(read_only, "read_only"))
    if flag(read_only, "read_only"):
        raise Invalid("a log is shared or only read, not both", hint="leave out share=True: reading needs no owner")
    return _open_shared(asked)


def _open_shared(asked: alone.Asked) -> Log:
    keys = SharedKeys(asked.keyring, asked.cipher)
    how = Asked(asked.directory.path, asked.settings, asked.clock, keys)

    def now() -> alone.Asked:
        """As it was asked for, with the keys that the log has now."""
        return asked._replace(keyring=keys.keyring)

    membership = Membership(
        how, lambda directory: _Owned(now(), directory), lambda host, owner: _set_calls(host, owner, membership, link)
    )
    link = SocketLink(membership, asked.clock)
    try:
        link.join(_JOIN_S)
        journal = open_shared(asked.directory.database, membership.log_id, asked.journal, link)
    except BaseException:
        link.close(_JOIN_S)
        raise
    log = compose_member(asked, journal, link, _Ownership(membership), keys)
    log._lifetime.shared = ProcessTurns(log, membership, link, journal, lambda: _open_shared(now()))
    return log


class _Ownership:
    """What a member knows of who owns its log."""

    def __init__(self, membership: Membership) -> None:
        self.keep = membership.keep
        self.hold_off = membership.hold_off
        self._membership = membership

    def log(self) -> Log | None:
        """The log that this member owns for all, if it does."""
        owner = self._membership.owner
        return owner.log if isinstance(owner, _Owned) else None


def _set_calls(host: Host, owner: Owner, membership: Membership, link: SocketLink) -> None:
    set_calls(host, owner)
    assert isinstance(owner, _Owned)
    owner.stop_answering = answer_members(host, owner.log, membership.hand_over, lambda: link.session)


class _Owned(Owner):
    """The log that this process owns for all members; nobody but the host uses it."""

    def __init__(self, asked: alone.Asked, directory: Directory) -> None:
        self.log = alone.open_locked(asked, directory)
        process_lifetime.drop(self.log._lifetime)  # it ends with the member that owns it
        self.stop_answering: Callable[[], None] = lambda: None

    @property
    def journal(self) -> Journal:
        """Its journal."""
        return self.log._context.journal

    def settle(self, timeout: float) -> None:
        """Make durable, seal and ship what is there, and go on."""
        self.log._lifetime.settle_at_exit()

    def close(self, timeout: float, *, hand_over: bool) -> None:
        """Close it."""
        self.stop_answering()
        self.log._lifetime.close(timeout, hand_over=hand_over)
