"""Opening a log, alone or shared with other processes: `holdfast.open`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from holdfast.arguments import flag
from holdfast.clock import Clock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid
from holdfast.log import open_log as alone
from holdfast.log.local_parts import parts_of
from holdfast.log.log import Log
from holdfast.settings import Settings
from holdfast.sharing.callers.lone_owner import listen_alone
from holdfast.signals import Flag

_NEXT_TRY_S = 0.004


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

    With a `store` (`s3://bucket/prefix`, `file:///directory`, an absolute path, `./backup` …; also `store.url` in the
    settings) everything is shipped there in order, beside the appends. The log opens and goes on while it is away.

    >>> import holdfast, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with holdfast.open(directory) as log:
    ...         log.topic("orders").append(b"first").offset
    0
    """
    reads = flag(read_only, "read_only")
    asked = alone.asked_for(path, store, settings, keyring, cipher, clock, read_only=reads)
    if not flag(share, "share"):
        log = alone.open_asked(asked, read_only=reads)
        if not reads:
            return listen_alone(log)
        parts_of(log).executions.reach_owner = partial(_reach_owner, asked)
        return log
    if reads:
        raise Invalid("a log is shared or only read, not both", hint="leave out share=True: reading needs no owner")
    from holdfast.sharing.shared_opening import open_member  # who has a log alone needs nothing of that

    return open_member(asked)


def open_or_call(
    path: str | os.PathLike[str],
    settings: Settings | Mapping[str, Any] | None = None,
    keyring: Keyring | None = None,
    *,
    stays: bool = False,
) -> Log:
    """Own a log that nobody owns, or else ask its owner: for tools.

    Unless it `stays`, a tool needs the log for a moment, and does not listen while it owns it: others wait for its end.
    """
    from holdfast.sharing.callers.calling import JOIN_S, NoOwner, open_caller

    asked = alone.asked_for(path, None, settings, keyring, None, None, read_only=False)
    until = asked.clock.monotonic() + JOIN_S
    while not asked.directory.try_to_own(shared=False):
        try:
            return open_caller(asked)
        except NoOwner:  # it has ended meanwhile; or the system does not say that there is one
            if asked.clock.monotonic() > until:
                asked.directory.own()  # raises who it is
                break
        Flag().wait(_NEXT_TRY_S)
    log = alone.open_locked(asked, asked.directory)
    return listen_alone(log) if stays else log


def _reach_owner(asked: alone.OpenArguments) -> Log:
    from holdfast.sharing.callers.calling import open_caller

    return open_caller(asked)
