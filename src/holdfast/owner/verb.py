"""What a verb is: its name, its request and its result, who may ask for it, and what the owner does.

Both ends of a verb stand in one module, with its request: what the owner does for it (a handler), and the proxy of
those who ask. `verbs.py` has the table of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from holdfast.errors import Denied, Invalid
from holdfast.journal.commit.owner_calls import Nothing
from holdfast.model.topic_name import check_users
from holdfast.owner.machine_paths import without_places_in
from holdfast.owner.peer import Peer, Rights

if TYPE_CHECKING:
    from holdfast.owner.log_owner import LogOwner

Request = TypeVar("Request", bound=msgspec.Struct)
Result = TypeVar("Result", bound=msgspec.Struct)

Name = Annotated[str, msgspec.Meta(max_length=256)]
Names = Annotated[tuple[Name, ...], msgspec.Meta(max_length=100_000)]
SECONDS_MAX = 7 * 86_400.0
"""The longest time that a request can ask for."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]


DONE = Nothing()


class PublicRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that has a route of its own, too: a map whose fields have defaults, so that its JSON is the same."""


class Asks(Protocol):
    """The way to the owner: over the socket (`Asking`), or over HTTP."""

    def ask(self, name: str, request: msgspec.Struct, answer: type[Result], timeout: float = ...) -> Result:
        """What the owner answers; it has so many seconds for what it does, or as long as it takes."""


# -- who may ask ------------------------------------------------------------------------------------------


class About(NamedTuple):
    """One thing that a request is about."""

    topic: str | None
    """None: the whole log."""
    consumer: str | None = None


class Right(NamedTuple):
    """Who may ask, beside members."""

    scopes: tuple[str, ...] | Callable[[Any], tuple[str, ...]]
    """One of these scopes is needed, perhaps another one for each request …"""
    about: Callable[[Any], Iterable[About]]
    """… of each of these; of nothing at all, any token will do."""
    changes: bool = False
    """Whether it changes its topics: those that are holdfast's own nobody changes."""
    bind: Callable[[Rights, Any], Any] = lambda rights, request: request
    """Makes ids that a client chose its own: the same bytes from another client are another id."""
    show: Callable[[Rights, Any], Any] = lambda rights, result: result
    """Leaves out of an answer what the caller may not know of."""

    def check(self, rights: Rights, request: object) -> None:
        """Raise Denied unless a caller with these rights may ask for this."""
        scopes = self.scopes(request) if callable(self.scopes) else self.scopes
        for topic, consumer in self.about(request):
            if topic is None:
                rights.require(scopes, None)
            else:
                rights.require_topic(scopes, topic, consumer)
                if self.changes:
                    check_users(topic)


def whole_log(_: object) -> tuple[About, ...]:
    """The whole log."""
    return (About(None),)


def its_topic(request: Any) -> tuple[About, ...]:
    """The topic."""
    return (About(request.topic),)


def its_topics(request: Any) -> tuple[About, ...]:
    """The topics, or the whole log."""
    named = request.topic
    return (About(None),) if named is None else tuple(map(About, (named,) if isinstance(named, str) else named))


def without_paths(_: Rights, result: Result) -> Result:
    """A path of the owner's machine is nobody else's business."""
    return without_places_in(result)


READ_LOG = Right(("read",), whole_log, show=without_paths)
ADMIN_LOG = Right(("admin",), whole_log, show=without_paths)


# -- the verb ---------------------------------------------------------------------------------------------


class Verb(msgspec.Struct, Generic[Request, Result], frozen=True):
    """One verb."""

    name: str
    request: type[Request]
    result: type[Result]
    right: Right | None
    """None: it is for members alone."""
    handler: Callable[[LogOwner, Peer, Request], Result]
    """What the owner does."""
    repeatable: bool = True
    """Whether asking twice is asking once: it is asked again of the next owner when one dies."""
    is_long: bool = False
    """Whether it may take minutes."""
    route: str | None = None
    """The method and path under which people ask for it with JSON; clients ask by `POST /v1/calls/{name}`."""
    has_events: bool = False
    """Whether events about it follow later."""
    among_members: bool = False
    """Whether only processes that share the log may ask, and not every process of the same user with its keys."""

    def ask(self, owner: Asks, request: Request, timeout: float | None = None) -> Result:
        """What the owner answers, from another process; it has `timeout` seconds, or (None) as long as it takes."""
        if timeout is None:
            return owner.ask(self.name, request, self.result)
        return owner.ask(self.name, request, self.result, timeout)

    def decoded(self, body: bytes) -> Request:
        """A request; Invalid where these bytes are none."""
        try:
            return msgspec.msgpack.decode(body, type=self.request)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid("a call does not decode", hint="run the same version of holdfast everywhere") from error

    def check(self, rights: Rights, request: msgspec.Struct) -> Right:
        """Raise Denied unless a caller with these rights may ask for this."""
        if self.right is None:
            raise Denied(
                f"only processes beside the owner may ask for {self.name!r}", hint="see docs/reference/rights.md"
            )
        self.right.check(rights, request)
        return self.right

    def done(self, owner: LogOwner, peer: Peer, request: Request) -> Result:
        """What comes of it, if the caller may ask."""
        rights = peer.rights
        if rights is None:
            if self.among_members and not peer.is_member:
                raise Denied(
                    f"only processes that share the log may ask for {self.name!r}: its owner keeps it",
                    hint="do this in the process that owns the log, or open it with share=True in all of them",
                )
            return self.handler(owner, peer, request)
        right = self.check(rights, request)
        found: Result = right.show(rights, self.handler(owner, peer, right.bind(rights, request)))
        return found

    def answered(self, owner: LogOwner, peer: Peer, body: bytes) -> bytes:
        """The answer to a call, as bytes."""
        return msgspec.msgpack.encode(self.done(owner, peer, self.decoded(body)))
