"""Master keys by name, and the ways to refer to them without writing them down.

A keyring is text: keys separated by commas or line ends, each `id:base64` of 32 bytes, `#` starts a comment.
The first key encrypts; all of them decrypt, which is how rotation works: put a new key in front and keep the old
ones for as long as anything encrypted with them is to be read.

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
from holdfast.arguments import is_text, path_of
from holdfast.clock import Clock, SystemClock
from holdfast.errors import Invalid, NotFound, Unavailable

KEY_BYTES = 32
_FILE_BYTES_MAX = 1024 * 1024
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_MADE = "Keyring.generate('2026-11'), Keyring.from_file(path), Keyring.from_env(name)"
_SHAPE = "a keyring is 'id:base64-of-32-bytes', newest first, separated by commas or line ends"

logger = logging.getLogger("holdfast.crypto")


class Keyring:
    """Master keys by id; the first one encrypts, all of them decrypt.

    >>> keyring = Keyring.generate("2026-11")
    >>> keyring
    Keyring(current='2026-11', older=[])
    >>> keyring.rotated("2026-12")
    Keyring(current='2026-12', older=['2026-11'])
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not isinstance(keys, Mapping):
            raise Invalid(f"a keyring is created from a mapping, not {type(keys).__name__}", hint=_MADE)
        if not keys:
            raise Invalid("the keyring is empty", hint=_SHAPE)
        for key_id, key in keys.items():
            if not isinstance(key, bytes):
                raise Invalid(f"a key is bytes, not {type(key).__name__}", hint="keys have 32 bytes")
            if not isinstance(key_id, str) or not _KEY_ID.match(key_id):
                raise Invalid("a key id is malformed", hint="use 1 to 64 letters, digits, '.', '_' or '-'")
            if len(key) != KEY_BYTES:
                raise Invalid(f"key {key_id!r} has the wrong length bytes={len(key)}", hint="keys have 32 bytes")
        self._keys = dict(keys)
        self.current = next(iter(self._keys))
        self.variable: str | None = None
        """The reference to the variable that it was read from, so that nobody takes its name for a misspelt setting."""

    @classmethod
    def given(cls, keyring: Keyring | str | None) -> Keyring | None:
        """What a caller gave: a keyring, or a reference to one (`env:NAME`, `file:PATH`); never keys themselves."""
        if keyring is None or isinstance(keyring, Keyring):
            return keyring
        return cls.from_reference(keyring)

    @classmethod
    def checked(cls, keyring: object) -> Keyring:
        """A keyring, and nothing that only refers to one."""
        if not isinstance(keyring, Keyring):
            hint = "make a new one of the present one: keyring.rotated('2026-12')"
            raise Invalid(f"a keyring is holdfast.Keyring, not {type(keyring).__name__}", hint=hint)
        return keyring

    @classmethod
    def generate(cls, key_id: str = "k1", *, clock: Clock | None = None) -> Keyring:
        """A keyring with one new random key."""
        return cls({_text(key_id, "a key id"): (clock or SystemClock()).random_bytes(KEY_BYTES)})

    @classmethod
    def from_env(cls, name: str) -> Keyring:
        """The keyring in an environment variable."""
        text = environ.get(_text(name, "the name of a variable"))
        if not text:
            raise NotFound(f"no keyring in the environment variable={name}", hint=f"set {name}; {_SHAPE}")
        keyring = cls._parse(text, f"environment variable {name}")
        keyring.variable = f"env:{name}"
        return keyring

    @classmethod
    def from_file(cls, path: str | Path) -> Keyring:
        """The keyring in a file, which only its owner should be able to read."""
        path = path_of(path, "a keyring")
        try:
            data, mode = disk.read_small_file(path, _FILE_BYTES_MAX)
            text = data.decode("ascii")
        except FileNotFoundError:
            raise NotFound(
                f"no keyring file path={path}",
                hint="make one: holdfast keys new FILE, or Keyring.generate().save(path)",
            ) from None
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
        return cls._parse(_text(_called(fetch), "what the function returns"), "callable")

    @classmethod
    def from_reference(cls, reference: str) -> Keyring:
        """The keyring that a setting names: `env:NAME` or `file:PATH`, never the keys themselves."""
        scheme, _, rest = _text(reference, "a keyring reference").partition(":")
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
        if _text(key_id, "a key id") in self._keys:
            raise Invalid(f"key id {key_id!r} is in use", hint="give the new key a new id")
        return Keyring({key_id: (clock or SystemClock()).random_bytes(KEY_BYTES), **self._keys})

    def check_follows(self, present: Keyring | None) -> None:
        """Raise Invalid unless a log with these keys can be rotated to this keyring."""
        if present is None:
            raise Invalid("this log has no keyring to rotate", hint="keys are chosen when a log is created")
        if present.current not in self:
            raise Invalid(
                f"the new keyring lacks the present key {present.current!r}",
                hint="make it with keyring.rotated('new-id'): older keys stay after the new one",
            )
        self.joined(present)

    def joined(self, other: Keyring) -> Keyring:
        """This keyring with the keys of another one behind its own; Invalid where one name stands for two keys."""
        for key_id, key in other._keys.items():
            if self._keys.get(key_id, key) != key:
                raise Invalid(f"key {key_id!r} is another one here", hint="give each key a name of its own")
        return Keyring({**self._keys, **other._keys})

    def led_by(self, key_id: str) -> Keyring:
        """This keyring with one of its keys in front."""
        return Keyring({key_id: self.key(key_id), **self._keys})

    def encode(self) -> bytes:
        """The keys themselves, as a file has them: to be encrypted, or written to that file."""
        return "".join(f"{name}:{base64.b64encode(key).decode()}\n" for name, key in self._keys.items()).encode()

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of all keys, the current one first."""
        return tuple(self._keys)

    def save(self, path: str | Path, *, replace: bool = True) -> None:
        """Write the keyring to a file of mode 0600, durably and whole.

        A file that is there is replaced only by a keyring that has every key in it, so that no key is lost by a second
        run of the line that makes one; `replace=False` refuses any file that is there.
        """
        place = path_of(path, "a keyring")
        token = SystemClock().random_bytes(8).hex()
        try:
            try:
                disk.write_new_file(place, self.encode(), mode=0o600, token=token)
            except FileExistsError:
                if not replace:
                    raise _kept("a file is already there", place) from None
                with disk.alone_with(place):
                    self._check_keeps(place)
                    disk.write_file(place, self.encode(), mode=0o600, token=token)
        except disk.NotRegular:
            raise Invalid(
                f"this is no regular file path={place}", hint="give the file that the link leads to"
            ) from None
        except OSError as error:
            raise Unavailable(
                f"cannot write the keyring file path={place}: {error.strerror}",
                hint=disk.remedy(error, "check that its directory is there and may be written to"),
            ) from error

    def _check_keeps(self, place: Path) -> None:
        """Raise Invalid unless every key in that file is a key of this keyring; an empty file has none."""
        if not disk.size_of(place):
            return
        try:
            present = Keyring.from_file(place)
        except Invalid as error:
            raise _kept(f"what is there cannot be read as a keyring ({error.message})", place) from None
        lost = [key_id for key_id, key in present._keys.items() if self._keys.get(key_id) != key]
        if lost:
            raise _kept(f"the file has keys that this keyring lacks ids={','.join(lost)}", place)

    def key(self, key_id: str) -> bytes:
        """The master key of that id; unknown ids fail closed."""
        try:
            return self._keys[_text(key_id, "a key id")]
        except KeyError:
            raise Invalid(
                f"the keyring has no key {key_id!r}", hint="add the older key after the current one in the keyring"
            ) from None

    def __contains__(self, key_id: object) -> bool:
        return key_id in self._keys

    def __repr__(self) -> str:
        older = [key_id for key_id in self._keys if key_id != self.current]
        return f"Keyring(current={self.current!r}, older={older!r})"

    def __reduce__(self) -> NoReturn:
        raise Invalid("a keyring cannot be pickled", hint="send a reference such as 'env:NAME' and load it there")


def _text(value: object, what: str) -> str:
    """A text; what is given instead may be a secret and is not repeated."""
    if not is_text(value):
        raise Invalid(
            f"{what} is text, not {type(value).__name__}", hint=f"{_MADE}, or a text 'env:NAME' or 'file:PATH'"
        )
    return value


def _kept(why: str, place: Path) -> Invalid:
    return Invalid(
        f"{why} path={place}",
        hint="a key is never overwritten: save under another name, "
        "or put a new key in front of those there: Keyring.from_file(path).rotated('new-id').save(path)",
    )


def _called(fetch: object) -> object:
    if not callable(fetch):
        hint = "give a function that returns the keyring's text; a file is Keyring.from_file(path)"
        raise Invalid(f"this is not a function: {type(fetch).__name__}", hint=hint)
    return fetch()
