"""Credentials by reference: where they are found is written down, they themselves never are.

A reference is empty (botocore's usual chain: environment, profile, config files, container, instance metadata, web
identity), `profile:NAME`, `env:PREFIX` (PREFIX_ACCESS_KEY_ID, PREFIX_SECRET_ACCESS_KEY, PREFIX_SESSION_TOKEN) or
`file:PATH` (JSON or lines `name = value`; read again when the file changes). Nothing is looked up before the first
`get`, which may ask the network and so blocks; `cached` never does. Both may be called from any thread.

What was found is kept for a while: botocore hands out nothing that expires within ten minutes, so it is queried again
only every minute. A file that cannot be read while it is being replaced leaves the older credentials in force until the
store refuses them. No secret reaches a repr, an error or a pickle: a source is pickled as its reference.
"""

from __future__ import annotations

import logging
import stat
import threading
from math import inf
from os import environ
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.errors import Invalid
from holdfast.store.port import StoreRefused, StoreUnavailable

logger = logging.getLogger("holdfast.shipping")

EXTRA_HINT = "pip install 'holdfast-log[s3]'"

_SHAPE = "write '' for the usual chain, 'profile:NAME', 'env:PREFIX' or 'file:PATH'; never the credentials themselves"
_KEPT_SECONDS = 60.0
_FILE_BYTES_MAX = 2**16

_Stamp = tuple[int, int, int] | None


class Credentials(NamedTuple):
    """What requests are signed with; it never shows itself."""

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"

    def __reduce__(self) -> NoReturn:
        raise Invalid("credentials cannot be pickled", hint="send a reference such as 'env:PREFIX' and load it there")


class _CacheEntry(NamedTuple):
    credentials: Credentials
    until: float
    stamp: _Stamp


class CredentialSource:
    """Finds credentials by reference, keeps them, and finds them anew when it must.

    >>> CredentialSource("profile:backup")
    CredentialSource('profile:backup')
    """

    def __init__(self, reference: str = "", *, clock: Clock | None = None) -> None:
        kind, _, name = reference.partition(":")
        if reference and (kind not in ("profile", "env", "file") or not name):
            # It may be a secret that was pasted here: it must not reach a message.
            raise Invalid("a reference to credentials is not understood", hint=_SHAPE)
        self._reference, self._kind, self._name = reference, kind, name
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._kept: _CacheEntry | None = None
        self._botocore: Any = None
        """botocore's own object, which knows when and how to refresh."""

    def cached(self) -> Credentials | None:
        """What is at hand; None when `get` would have to look for it. Never blocks."""
        kept = self._kept
        if kept is None or self._clock.monotonic() >= kept.until:
            return None
        return kept.credentials if kept.stamp == self._stamp() else None

    def get(self) -> Credentials:
        """The credentials; raises StoreRefused when there are none, StoreUnavailable when asking for them failed."""
        found = self.cached()
        if found is not None:
            return found
        with self._lock:
            found = self.cached()
            if found is None:
                kept = self._find()
                _check(kept.credentials)
                self._kept, found = kept, kept.credentials
            return found

    def invalidate(self, used: Credentials | None = None) -> None:
        """The store refused these: look for others next time. Does nothing when others were found already."""
        with self._lock:
            if self._kept is not None and (used is None or self._kept.credentials == used):
                self._kept = self._botocore = None

    def region(self) -> str:
        """The region that the environment or the profile names; '' when none does. Reads files, asks no network."""
        named = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
        if named or self._kind in ("env", "file"):
            return named or ""
        session = _session(self._name)
        from botocore.exceptions import BotoCoreError

        try:
            return str(session.get_config_variable("region") or "")
        except BotoCoreError:  # no such profile, say: `get` will tell
            return ""

    def anew(self) -> CredentialSource:
        """The same reference, nothing found yet: for a forked child, where this one's lock may be held forever."""
        return CredentialSource(self._reference, clock=self._clock)

    def __repr__(self) -> str:
        return f"CredentialSource({self._reference!r})"

    def __reduce__(self) -> tuple[type[CredentialSource], tuple[str]]:
        return CredentialSource, (self._reference,)

    def _find(self) -> _CacheEntry:
        if self._kind == "env":
            return _CacheEntry(self._from_environment(), inf, None)
        if self._kind == "file":
            return self._from_file()
        return _CacheEntry(self._from_botocore(), self._clock.monotonic() + _KEPT_SECONDS, None)

    def _from_environment(self) -> Credentials:
        names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
        access, secret, token = (environ.get(f"{self._name}_{name}", "") for name in names)
        if not access or not secret:
            raise _none(f"set {self._name}_ACCESS_KEY_ID and {self._name}_SECRET_ACCESS_KEY")
        return Credentials(access, secret, token)

    def _stamp(self) -> _Stamp:
        if self._kind != "file":
            return None
        try:
            status = Path(self._name).stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _from_file(self) -> _CacheEntry:
        stamp = self._stamp()  # before reading: a change in between is seen next time
        try:
            path = Path(self._name)
            with path.open(encoding="utf-8") as stream:
                _warn_if_readable_by_others(path)
                return _CacheEntry(_parse(stream.read(_FILE_BYTES_MAX)), inf, stamp)
        except (OSError, ValueError):
            if self._kept is not None:
                return self._kept
            raise _none(
                f"{self._name} must hold access_key_id and secret_access_key, as JSON or as lines 'name = value'"
            ) from None

    def _from_botocore(self) -> Credentials:
        _require_botocore()
        from botocore.exceptions import PartialCredentialsError, ProfileNotFound

        try:
            if self._botocore is None:
                self._botocore = _session(self._name).get_credentials()
            if self._botocore is None:
                raise _none("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with AWS_PROFILE")
            frozen = self._botocore.get_frozen_credentials()
        except (ProfileNotFound, PartialCredentialsError) as error:
            raise _none(f"{type(error).__name__}: look into ~/.aws/config and ~/.aws/credentials") from None
        except Invalid:
            raise
        except Exception as error:  # whatever a container, a metadata service or a process of the user's does
            raise StoreUnavailable(
                f"asking for credentials failed error={type(error).__name__}", cause="credentials"
            ) from error
        if not frozen.access_key or not frozen.secret_key:
            raise _none("the chain found credentials without keys")
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")


def _require_botocore() -> None:
    try:
        import botocore.session  # noqa: F401
    except ImportError as error:
        raise Invalid("S3 needs the extra 's3'", hint=EXTRA_HINT) from error


def _session(profile: str) -> Any:
    _require_botocore()
    from botocore.session import Session

    return Session(profile=profile or None)


def _none(hint: str) -> StoreRefused:
    return StoreRefused("there are no credentials for the store", cause="credentials", hint=hint)


def _check(credentials: Credentials) -> None:
    """What cannot stand in a header is found here, where no message repeats it."""
    if not all(33 <= ord(character) <= 126 for part in credentials for character in part):
        raise _none("the credentials hold spaces, line ends or other characters that cannot be sent")


def _warn_if_readable_by_others(path: Path) -> None:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        logger.warning(
            "credentials file is readable by others: %s", path, extra={"action": "credentials_mode", "path": str(path)}
        )


def _parse(text: str) -> Credentials:
    """The credentials in a file's text; raises ValueError. `aws_` before a name, capitals and `_` do not matter."""
    values = _json_values(text) if text.lstrip().startswith("{") else _line_values(text)
    plain = {name.strip().lower().removeprefix("aws_").replace("_", ""): value for name, value in values}
    if len(plain) != len(values):
        raise ValueError  # two sections, perhaps: nothing says which one is meant
    access, secret = plain.get("accesskeyid", ""), plain.get("secretaccesskey", "")
    if not access or not secret:
        raise ValueError
    return Credentials(access, secret, plain.get("sessiontoken", ""))


def _json_values(text: str) -> list[tuple[str, str]]:
    found = msgspec.json.decode(text, type=dict[str, Any])
    return [(name, value) for name, value in found.items() if isinstance(value, str)]


def _line_values(text: str) -> list[tuple[str, str]]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#;[")
    return [(name, value.strip()) for name, separator, value in pairs if separator]
