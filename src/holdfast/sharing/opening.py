"""Opening a log, alone or shared with other processes: `holdfast.open`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from holdfast.arguments import flag
from holdfast.clock import Clock
from holdfast.crypto.cipher import PayloadCipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid
from holdfast.log import open_log as alone
from holdfast.log.log import Log
from holdfast.settings import Settings


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
    reads = flag(read_only, "read_only")
    asked = alone.asked_for(path, store, settings, keyring, cipher, clock, read_only=reads)
    if not flag(share, "share"):
        return alone.open_asked(asked, read_only=reads)
    if reads:
        raise Invalid("a log is shared or only read, not both", hint="leave out share=True: reading needs no owner")
    from holdfast.sharing.shared_opening import open_member  # who has a log alone needs nothing of that

    return open_member(asked)
