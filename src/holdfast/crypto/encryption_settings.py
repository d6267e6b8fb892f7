"""What can be set about encryption. Keys are named here, never given."""

from __future__ import annotations

import msgspec


class CryptoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether and with which keys a log is encrypted."""

    encrypt: bool = False
    """Insist on encryption: without a usable key the log does not open. A keyring alone also encrypts."""

    keyring: str = ""
    """Where the keyring is: `env:NAME` or `file:PATH`."""
