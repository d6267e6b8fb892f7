"""Opening a log together with other processes: one of them owns it, the others are its members."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import process_lifetime
from holdfast.journal.journal import Journal
from holdfast.journal.session_access import remembered_us
from holdfast.log import open_log as alone
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.log_directory import Directory
from holdfast.sharing.fork_and_exit import ForkAndExit
from holdfast.sharing.hosting.host import Host
from holdfast.sharing.membership import MemberOptions, Membership, Owner
from holdfast.sharing.owner_link import SocketLink
from holdfast.sharing.shared_keys import SharedKeys
from holdfast.sharing.shared_log import answer_members, compose_member, join_owner

_JOIN_S = 30.0


def open_member(arguments: alone.OpenArguments) -> Log:
    """Own the log, or join its owner."""
    keys = SharedKeys(arguments.keyring, arguments.cipher)
    how = MemberOptions(arguments.directory.path, arguments.settings, arguments.clock, keys)

    def now() -> alone.OpenArguments:
        """As it was asked for, with the keys that the log has now."""
        return arguments._replace(keyring=keys.keyring)

    membership = Membership(
        how,
        lambda directory: _HostedLog(now(), directory),
        lambda host, owner: _set_calls(host, owner, membership, link),
    )
    link = SocketLink(membership, arguments.clock, remembered_us(arguments.settings.journal))
    journal = join_owner(arguments, membership, link, _JOIN_S)
    log = compose_member(arguments, journal, link, _Ownership(membership), keys)
    parts_of(log).lifetime.shared = ForkAndExit(log, membership, link, journal, lambda: open_member(now()))
    return log


class _Ownership:
    """What a member knows of who owns its log."""

    def __init__(self, membership: Membership) -> None:
        self.hold_off = membership.hold_off
        self.wanted = membership.wanted
        self._membership = membership

    def log(self) -> Log | None:
        """The log that this member owns for all, if it does."""
        return _log_of(self._membership.owner)

    def keep(self) -> Log | None:
        """The same, and it is not handed over any more."""
        return _log_of(self._membership.keep())


def _log_of(owner: Owner | None) -> Log | None:
    return owner.log if isinstance(owner, _HostedLog) else None


def _set_calls(host: Host, owner: Owner, membership: Membership, link: SocketLink) -> None:
    assert isinstance(owner, _HostedLog)
    owner.stop_answering = answer_members(host, owner.log, membership.hand_over, lambda: link.session)


class _HostedLog(Owner):
    """The log that this process owns for all members; nobody but the host uses it."""

    def __init__(self, arguments: alone.OpenArguments, directory: Directory) -> None:
        self.log = alone.open_locked(arguments, directory)
        self._parts = parts_of(self.log)
        process_lifetime.drop(self._parts.lifetime)  # it ends with the member that owns it
        self.stop_answering: Callable[[], None] = lambda: None

    @property
    def journal(self) -> Journal:
        """Its journal."""
        return self._parts.journal

    def settle(self, timeout: float) -> None:
        """Make durable, seal and ship what is there, and go on."""
        self._parts.lifetime.settle_at_exit()

    def close(self, timeout: float, *, hand_over: bool) -> None:
        """Close it."""
        self.stop_answering()
        self._parts.lifetime.close(timeout, hand_over=hand_over)
