"""The console: a page that shows the log, and the few files that it is made of.

The files lie in `server/console/` and hold no data: what the page shows, it asks for over the same routes as everybody,
with the token of its user. The policy that goes with the page lets it run and load these files and nothing
else, and lets no text become markup or script (trusted types), whatever is in a record.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from holdfast.errors import NotFound
from holdfast.server.api_answers import Answer, Headers
from holdfast.server.api_request import ApiRequest
from holdfast.server.served import Served

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
"""What a file is, by its name."""

_PAGE = "console.html"
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Headers = [
    (b"content-security-policy", _POLICY),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


@cache
def _files() -> dict[str, Answer]:
    """All of them, read once; a request chooses among these names."""
    found = {}
    for one in files("holdfast.server").joinpath("console").iterdir():
        kind = TYPES.get(one.name[one.name.rfind(".") :])
        if kind is not None:
            found[one.name] = Answer(one.read_bytes(), kind, headers=_HEADERS)
    return found


@cache
def _page() -> Answer:
    content = files("holdfast.server").joinpath("console", _PAGE).read_bytes()
    return Answer(content, "text/html; charset=utf-8", headers=_HEADERS)


async def console(request: ApiRequest, served: Served) -> Answer:
    """The console: a page that shows the log over these routes, with the viewer's token; 404 with `server.console =
    false`.
    """
    _check_wanted(served)
    return _page()


async def console_file(request: ApiRequest, served: Served) -> Answer:
    """A script, a style or a picture of the console."""
    _check_wanted(served)
    found = _files().get(request.params["file"])
    if found is None:
        raise NotFound("the console has no such file", hint="GET / is the console")
    return found


def _check_wanted(served: Served) -> None:
    if not served.settings.console:
        raise NotFound(
            "this server has no console",
            hint="server.console is off, or --no-console was given; GET /docs lists the routes",
        )
