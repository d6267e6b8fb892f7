"""Master keys by name, and the ways to refer to them without writing them down.

A keyring is text: keys separated by commas or line ends, each `id:base64` of 32 bytes, `#` starts a comment.
The first key seals; all of them open, which is how rotation works: put a new key in front and keep the old
ones for as long as anything sealed with them is to be read.

Keys come by reference only: an environment variable, a file, a callable (for a secret manager), or a text
`env:NAME` / `file:PATH` in the settings. A keyring never shows its keys: not in repr, not in errors, and it
refuses to be pickled, so that it cannot travel inside a job's plan.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import stat
from collections.abc import Callable, Mapping
from os import environ
from pathlib import Path
from typing import NoReturn

from holdfast import disk
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Invalid, NotFound

KEY_BYTES = 32
_FILE_BYTES_MAX = 1024 * 1024
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SHAPE = "a keyring is 'id:base64-of-32-bytes', newest first, separated by commas or line ends"

logger = logging.getLogger("holdfast.crypto")


class Keyring:
    """Master keys by id; the first one seals, all of them open.

    >>> keyring = Keyring.generate("2026-11")
    >>> keyring
    Keyring(current='2026-11', older=[])
    >>> keyring.rotated("2026-12")
    Keyring(current='2026-12', older=['2026-11'])
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise Invalid("the keyring is empty", hint=_SHAPE)
        for key_id, key in keys.items():
            if not _KEY_ID.match(key_id):
                raise Invalid("a key id is malformed", hint="use 1 to 64 letters, digits, '.', '_' or '-'")
            if len(key) != KEY_BYTES:
                raise Invalid(f"key {key_id!r} has the wrong length bytes={len(key)}", hint="keys have 32 bytes")
        self._keys = dict(keys)
        self.current = next(iter(self._keys))

    @classmethod
    def generate(cls, key_id: str = "k1", *, clock: Clock | None = None) -> Keyring:
        """A keyring with one new random key."""
        return cls({key_id: (clock or SystemClock()).random_bytes(KEY_BYTES)})

    @classmethod
    def from_env(cls, name: str) -> Keyring:
        """The keyring in an environment variable."""
        text = environ.get(name)
        if not text:
            raise NotFound(f"no keyring in the environment variable={name}", hint=f"set {name}; {_SHAPE}")
        return cls._parse(text, f"environment variable {name}")

    @classmethod
    def from_file(cls, path: str | Path) -> Keyring:
        """The keyring in a file, which only its owner should be able to read."""
        path = Path(path)
        try:
            data, mode = disk.read_small_file(path, _FILE_BYTES_MAX)
            text = data.decode("ascii")
        except FileNotFoundError:
            raise NotFound(f"no keyring file path={path}", hint="make one with Keyring.generate().save(path)") from None
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(
                f"cannot read the keyring file path={path}",
                hint="it is a regular file of at most 1 MiB; check the file and its mode",
            ) from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            logger.warning(
                "keyring file is readable by others: %s", path, extra={"action": "keyring_mode", "path": str(path)}
            )
        return cls._parse(text, f"file {path}")

    @classmethod
    def from_callable(cls, fetch: Callable[[], str]) -> Keyring:
        """The keyring that a function returns as text, for instance from a secret manager."""
        return cls._parse(fetch(), "callable")

    @classmethod
    def from_reference(cls, reference: str) -> Keyring:
        """The keyring that a setting names: `env:NAME` or `file:PATH`, never the keys themselves."""
        scheme, _, rest = reference.partition(":")
        if scheme == "env" and rest:
            return cls.from_env(rest)
        if scheme == "file" and rest:
            return cls.from_file(rest)
        raise Invalid("a keyring reference is not understood", hint="write 'env:NAME' or 'file:PATH'")

    @classmethod
    def _parse(cls, text: str, source: str) -> Keyring:
        lines = (line.partition("#")[0].strip() for line in re.split(r"[,\n]", text))
        keys: dict[str, bytes] = {}
        for item in filter(None, lines):
            key_id, separator, encoded = item.partition(":")
            try:
                key = base64.b64decode(
                    encoded.strip(), altchars=b"-_" if {"-", "_"} & set(encoded) else None, validate=True
                )
            except (binascii.Error, ValueError):
                separator, key = "", b""
            if not separator or key_id.strip() in keys:
                # The item itself may be a secret that was pasted wrongly: it must not reach a message.
                raise Invalid(f"the keyring from {source} is malformed", hint=_SHAPE)
            keys[key_id.strip()] = key
        return cls(keys)

    def rotated(self, key_id: str, *, clock: Clock | None = None) -> Keyring:
        """A keyring with a new random key in front and all present keys behind it."""
        if key_id in self._keys:
            raise Invalid(f"key id {key_id!r} is in use", hint="give the new key a new id")
        return Keyring({key_id: (clock or SystemClock()).random_bytes(KEY_BYTES), **self._keys})

    def save(self, path: str | Path) -> None:
        """Write the keyring to a file of mode 0600, durably and whole."""
        token = SystemClock().random_bytes(8).hex()
        lines = (f"{key_id}:{base64.b64encode(key).decode()}\n" for key_id, key in self._keys.items())
        disk.write_file(Path(path), "".join(lines).encode(), mode=0o600, token=token)

    def key(self, key_id: str) -> bytes:
        """The master key of that id; unknown ids fail closed."""
        try:
            return self._keys[key_id]
        except KeyError:
            raise Invalid(
                f"the keyring has no key {key_id!r}", hint="add the older key behind the current one in the keyring"
            ) from None

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys; the first one seals."""
        return tuple(self._keys)

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def __repr__(self) -> str:
        older = [key_id for key_id in self._keys if key_id != self.current]
        return f"Keyring(current={self.current!r}, older={older!r})"

    def __reduce__(self) -> NoReturn:
        raise Invalid("a keyring cannot be pickled", hint="send a reference such as 'env:NAME' and load it there")
