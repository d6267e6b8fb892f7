"""The token of a client: by reference, read when it is needed, never shown.

`env:NAME` and `file:PATH` name where it is; a callable fetches it from anywhere else, such as a secret manager. The
token itself as text is refused: it would stand in source code, in tracebacks and in notebooks. A token that the server
does not take (any more) is read again before the caller gets an error: tokens are rotated by replacing the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import Invalid, NotFound

_BYTES_MAX = 4_096
_HINT = "write token='env:NAME' or token='file:PATH', or give a function that returns it"

Token = Callable[[], str]
Reference = str | Token


def token_of(reference: object) -> Token | None:
    """How the token is got, each time it is needed; None where there is none."""
    if reference is None:
        return None
    if callable(reference):
        return lambda: _checked(reference())
    if not isinstance(reference, str):
        raise Invalid(f"a token is given by reference, not as {type(reference).__name__}", hint=_HINT)
    scheme, _, rest = reference.partition(":")
    if scheme == "env" and rest:
        return lambda: _of_environment(rest)
    if scheme == "file" and rest:
        return lambda: _of_file(Path(rest))
    raise Invalid("a token is given by reference, never as it is", hint=_HINT)


def _of_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise NotFound(f"the environment has no token name={name}", hint=f"set {name}, or give another reference")
    return _checked(value.strip())


def _of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise NotFound(f"the token cannot be read path={path}: {error.strerror}", hint=_HINT) from None
    return _checked(content.decode("latin-1").strip())


def _checked(token: object) -> str:
    """A token as it may stand in a header; what is wrong with another one is said without showing it."""
    if not isinstance(token, str) or not 0 < len(token) <= _BYTES_MAX:
        raise Invalid("the token is empty, too long, or not text", hint=_HINT)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Invalid("the token has characters that no token has", hint="it is one line of letters, digits and signs")
    return token
