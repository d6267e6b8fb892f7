"""Asking a server: one question and its whole answer, again and again until it comes or the time is over.

A question that may be asked twice (`again=True`: reading, and what has an id of its own) is repeated after anything
that may pass: no connection, a lost answer, 408, 429, 502, 503, 504. One that may not is repeated only where it
certainly was not carried out; else a lost answer is OutcomeUnknown. Pauses grow and are random, so that clients that
lost a server together do not come back together; `Retry-After` is honoured. Everything ends at the caller's deadline.

Answers are checked before they are believed: the version of the API, the size, that it is no redirect, and that it is
the answer to this very request. Each attempt has a name of its own (`Holdfast-Question`), which the server repeats in
its answer, once. An answer with another name, or none, is another request's, or was here before: the connection is
given up, and what was asked counts as not answered. Only headers count: what follows a body is never looked at.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from http.client import HTTPException, HTTPResponse
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.caller import in_coroutine
from holdfast.clock import SystemClock
from holdfast.errors import Closed, HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.typed_decoding import from_json
from holdfast.remote.http.error_message import error_of
from holdfast.remote.http.server_address import ServerAddress
from holdfast.remote.http.server_connections import AnswerLost, NotSent, NotTrusted, ServerConnections
from holdfast.remote.http.token_reference import Token
from holdfast.signals import Flag

API = "1"
JSON, MSGPACK, ARROW = "application/json", "application/msgpack", "application/vnd.apache.arrow.stream"

Reply = TypeVar("Reply")

_ANSWER_BYTES_MAX = 256 * 2**20
_QUESTION = "Holdfast-Question"
_QUESTION_BYTES = 12
_PASSING = frozenset((408, 429, 502, 503, 504))
_PAUSE_S, _PAUSE_S_MAX = 0.02, 2.0
_RETRY_AFTER_S_MAX = 60.0

logger = logging.getLogger("holdfast.remote")
_clock = SystemClock()
monotonic = _clock.monotonic


class ServerAnswer(NamedTuple):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_passing(self) -> bool:
        """Whether another attempt may get a better one."""
        return self.status in _PASSING

    def decoded(self, kind: type[Reply]) -> Reply:
        """What its JSON says; Unavailable where that is something else."""
        try:
            return from_json(self.body, kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise not_understood() from None


class Question(NamedTuple):
    """What is asked."""

    method: str
    path: tuple[str, ...]
    """The parts of the path behind the prefix, not quoted yet."""
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = {}
    again: bool = True
    """Whether it may be asked twice."""
    first: bool = False
    """Whether a port where nobody listens is a mistake in the address, and not a server that is being started anew."""

    def target(self, prefix: str) -> str:
        """Where the request goes."""
        path = prefix + "".join("/" + quote(part, safe="") for part in self.path)
        return f"{path}?{urlencode(self.query)}" if self.query else path


class Attempt(NamedTuple):
    """What became of one attempt: an answer, or why there is none."""

    answer: ServerAnswer | None
    was_sent: bool = True
    """Whether the server may have carried it out."""
    why: str = ""
    problem: HoldfastError | None = None
    """Why another attempt would end in the same way."""
    is_refused: bool = False
    """Whether nobody listens there."""


class Exchange:
    """The way to one server, for any thread: the token that is known is replaced as a whole, `log` is set once."""

    def __init__(self, address: ServerAddress, connections: ServerConnections, token: Token | None) -> None:
        self.address = address
        self._connections = connections
        self._token = token
        self._bearer: str | None = None
        self.log: str | None = None
        """The log that is meant: a server that has another one by now refuses."""
        self._is_over = Flag()

    # -- questions and answers ----------------------------------------------------------------------------

    def ask(self, question: Question, timeout: float) -> ServerAnswer:
        """The answer, if it is 2xx; else what it says is raised. Raises Unavailable when none came in time."""
        if in_coroutine():
            warnings.warn(
                "this asks the server and blocks the event loop; use its _async twin, or: await asyncio.to_thread(…)",
                RuntimeWarning,
                stacklevel=3,
            )
        deadline = monotonic() + timeout
        pause = Pauses()
        in_doubt = False
        while True:
            attempt = self.attempt(question, deadline)
            if attempt.problem is not None:
                if attempt.was_sent and question.method != "GET":
                    raise self._unknown(attempt, None) from attempt.problem
                raise attempt.problem
            answer = attempt.answer
            if answer is not None and answer.status < 300:
                return answer
            in_doubt = in_doubt or (attempt.was_sent and not question.again and _is_doubtful(answer))
            if in_doubt and (answer is None or answer.is_passing):
                raise self._unknown(attempt, answer)
            if answer is not None and not answer.is_passing:
                raise error_of(answer.status, answer.body, str(self.address))
            wait = pause.next(answer)
            nobody_listens = question.first and attempt.is_refused
            if nobody_listens or monotonic() + wait >= deadline:
                raise self._gave_up(answer, attempt.why, None if nobody_listens else timeout)
            self.pause(wait)

    def checked(self, answer: ServerAnswer) -> ServerAnswer:
        """An answer, if it is 2xx; else what it says is raised."""
        if answer.status >= 300:
            raise error_of(answer.status, answer.body, str(self.address))
        return answer

    def attempt(self, question: Question, deadline: float) -> Attempt:
        """Ask once; an unknown token is read again, once, before that counts."""
        try:
            bearer = self._authorization()
        except HoldfastError as error:  # there is no token to be found
            return Attempt(None, was_sent=False, problem=error)
        found = self._once(question, deadline, bearer)
        if found.answer is not None and found.answer.status == 401 and self._token is not None:
            again = self._authorization(instead_of=bearer)
            if again != bearer:
                return self._once(question, deadline, again)
        return found

    def _once(self, question: Question, deadline: float, bearer: str | None) -> Attempt:
        self.require_open()
        headers = self._headers(question, bearer)
        headers[_QUESTION] = name = _clock.random_bytes(_QUESTION_BYTES).hex()
        connection = self._connections.take()
        is_read = False
        try:
            response = connection.request(
                question.method, question.target(self.address.prefix), headers, question.body, deadline
            )
            answer = self._read(response, name)
            is_read = not response.will_close
            return Attempt(answer)
        except HoldfastError as error:  # an answer that is not to be believed
            return Attempt(None, why=error.message, problem=error)
        except NotTrusted as error:
            return Attempt(None, was_sent=False, problem=self._not_trusted(error))
        except NotSent as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            return Attempt(None, was_sent=False, why=str(error), is_refused=refused)
        except AnswerLost as error:
            return Attempt(None, why=str(error))
        finally:
            self._connections.give_back(connection, reusable=is_read)

    def _read(self, response: HTTPResponse, name: str) -> ServerAnswer:
        try:
            body = response.read(_ANSWER_BYTES_MAX + 1)
        except (OSError, HTTPException) as error:
            raise AnswerLost(f"the answer broke off ({type(error).__name__})") from error
        if len(body) > _ANSWER_BYTES_MAX:
            raise Unavailable("an answer of the server is too large", hint="ask for less: limit=…, bytes_max=…")
        if response.length or (response.length is None and not response.chunked):
            # Hazard: Python gives what has come of a body that was cut, and says nothing, if asked for so many bytes.
            raise AnswerLost("the answer broke off")
        headers = {name.lower(): value for name, value in response.getheaders()}
        self._check(response.status, headers)
        if response.msg.get_all(_QUESTION) != [name]:
            raise AnswerLost("an answer to something else came")
        return ServerAnswer(response.status, headers, body)

    def _check(self, status: int, headers: Mapping[str, str]) -> None:
        if 300 <= status < 400:
            raise Invalid(
                f"the server at {self.address} redirects elsewhere, which is not followed status={status}",
                hint="give the address it redirects to, if you trust it: a token goes only where it was meant to go",
            )
        api = headers.get("holdfast-api")
        if api is not None and api != API:
            raise Invalid(
                f"the server at {self.address} speaks another version of the API api={api[:20]!r} ours={API}",
                hint="install the same version of holdfast on both sides",
            )
        if api is None and status < 300:
            raise Invalid(
                f"this is not a holdfast server, or one of another version: {self.address}",
                hint="give the address that `holdfast serve` printed",
            )

    def _headers(self, question: Question, bearer: str | None) -> dict[str, str]:
        headers = {"Host": self.address.authority, "User-Agent": "holdfast", "Accept": JSON, **question.headers}
        if bearer is not None:
            headers["Authorization"] = bearer
        if self.log is not None:
            headers["Holdfast-Log"] = self.log
        return headers

    def _authorization(self, instead_of: str | None = None) -> str | None:
        """The token as it is sent; read again where the server did not take the one that is known."""
        if self._token is None:
            return None
        known = self._bearer
        if known is None or known == instead_of:
            known = self._bearer = f"Bearer {self._token()}"
        return known

    # -- errors -------------------------------------------------------------------------------------------

    def _not_trusted(self, error: NotTrusted) -> Unavailable:
        return Unavailable(
            f"the server at {self.address} cannot be trusted: {error}",
            hint="give the authority that signed its certificate as ca=…, and the name in it as the address",
        )

    def _unknown(self, attempt: Attempt, answer: ServerAnswer | None) -> OutcomeUnknown:
        why = attempt.why or f"status={answer.status if answer is not None else 0}"
        return OutcomeUnknown(
            f"the server at {self.address} may or may not have done it: {why}", hint="look whether it was, or ask again"
        )

    def _gave_up(self, answer: ServerAnswer | None, why: str, waited_s: float | None) -> HoldfastError:
        if answer is not None:
            return error_of(answer.status, answer.body, str(self.address))
        within = "" if waited_s is None else f" within {waited_s:g} s"
        return Unavailable(
            f"no answer from the server at {self.address}{within}: {why}",
            hint="is it running there (`holdfast serve`), and can this machine reach it?",
        )

    # -- the end ------------------------------------------------------------------------------------------

    def require_open(self) -> None:
        """Raise if this client was closed."""
        if self._is_over.is_set():
            raise closed()

    def pause(self, wait: float) -> None:
        """Wait before the next attempt; raises if the client is closed meanwhile."""
        if self._is_over.wait(wait):
            raise closed()

    def close(self) -> None:
        """Take no more questions, and end those that are under way."""
        self._is_over.set()
        self._connections.interrupt()

    def forget(self) -> None:
        """In a forked child."""
        self._is_over = Flag()
        self._is_over.set()
        self._connections.forget()


class Pauses:
    """How long to wait before the next attempt: longer each time, at random, or as the server says."""

    def __init__(self) -> None:
        self._next = _PAUSE_S

    def next(self, answer: ServerAnswer | None = None) -> float:
        """The next pause, in seconds."""
        requested = _retry_after(answer)
        share = 0.5 + int.from_bytes(_clock.random_bytes(2), "big") / 2**17
        pause, self._next = self._next * share, min(_PAUSE_S_MAX, self._next * 2)
        return pause if requested is None else requested + pause


def not_understood(hint: str = "is its version the same as here?") -> Unavailable:
    """A server answered something else than it was asked for."""
    return Unavailable("the server's answer is not understood", hint=hint)


def closed() -> Closed:
    """Why a client that was closed takes nothing more."""
    return Closed("the connection to the server is closed", hint="connect again with holdfast.connect(url)")


def _is_doubtful(answer: ServerAnswer | None) -> bool:
    """Whether something may have been done: refused for lack of room is not, a time-out at the other end is."""
    return answer is None or answer.status in (502, 504)


def _retry_after(answer: ServerAnswer | None) -> float | None:
    text = "" if answer is None else answer.headers.get("retry-after", "")
    return min(float(text), _RETRY_AFTER_S_MAX) if text.isascii() and text.isdigit() else None
