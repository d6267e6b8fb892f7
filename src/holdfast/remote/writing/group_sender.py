"""The thread that brings groups to the server: the place that the writer has in a log of this process.

One group is on its way at a time; what is submitted meanwhile gathers in the next one. Each group is one request under
this client's session and a number of its own, and the server stores both in the commit that stores the records. So a
group whose answer was lost is simply sent again, as often as needed, also to a server that was killed and started
again: it is written once, and answered as it was the first time.

How long. A group is tried for as long as this client is open: callers have time-outs of their own, which end in
OutcomeUnknown, and their tickets still settle. Meanwhile the queue fills up to its limits, and newcomers get Full.

Failing. What the server refuses before it writes anything (4xx) fails with what it says; where that is one item's fault
(`Holdfast-Item`), the others are sent without it. After an attempt whose fate is not known, a refusal proves nothing
about the attempts before it: that is OutcomeUnknown. Nothing is ever reported as not written when it may have been.
With the next attempt goes which number the server has stored before (`Holdfast-Stored`): a log that does not know that
any more has forgotten this client, and would write what it wrote already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

from holdfast.clock import SystemClock
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.journal.queue.group import Group, Run, Unit
from holdfast.journal.queue.offered_failure import OfferedFailure
from holdfast.journal.queue.queue import Queue
from holdfast.journal.state.partition import Partition
from holdfast.remote.http.exchange import MSGPACK, Answer, Exchange, Pauses, Question, monotonic
from holdfast.remote.wire.error_message import error_of
from holdfast.remote.wire.group_message import decode_outcome, encode_group
from holdfast.remote.writing.outgoing_groups import ends_of, fill_in, first_failure, is_encoded, item_of

_SESSION_BYTES = 16
_ATTEMPT_S = 30.0
"""How long one attempt may take; then the connection is given up, and the group is sent again."""

Items = list["Run | Unit"]
Stored = Callable[[list[tuple[Partition, int]]], None]

logger = logging.getLogger("holdfast.remote")


class GroupSender:
    """Takes groups of a queue and has them written; all of it is its thread's."""

    def __init__(
        self, queue: Queue, exchange: Exchange, partitions: dict[str, tuple[Partition, ...]], stored: Stored
    ) -> None:
        """`stored` is told behind which offsets records are durable now."""
        self._queue = queue
        self._exchange = exchange
        self._partitions = partitions
        self._stored = stored
        self._session = SystemClock().random_bytes(_SESSION_BYTES).hex()
        self._sequence = 0
        self._stored_last = 0
        """The newest number that is known to be in the log."""
        self.offered_failure = OfferedFailure()
        self.groups = 0
        self._is_troubled = False
        self._thread = Thread(target=self._work, name="holdfast-sender", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait until it has ended; False when that takes longer."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def is_running(self) -> bool:
        """Whether it takes groups."""
        return self._thread.is_alive()

    def _work(self) -> None:
        group: Group | None = None
        try:
            while (group := self._queue.take()) is not None:
                self._bring(group)
                self._queue.complete(group)
        except BaseException as error:  # nobody is left waiting
            self._die(error, group)

    def _die(self, error: BaseException, group: Group | None) -> None:
        reason = error if isinstance(error, HoldfastError) else Closed(f"sending ended: {type(error).__name__}")
        if not isinstance(error, Closed):
            logger.critical("sending ended: %s", reason.message, extra={"action": "sender_ended"}, exc_info=error)
        self.offered_failure.note(reason)
        abandoned = self._queue.abandon(reason)
        if group is not None and not group.done:
            group.finish(_unknown("the client was closed before the server had answered"))
        for waiting in abandoned:
            waiting.finish(_not_sent())

    # -- one group ----------------------------------------------------------------------------------------

    def _bring(self, group: Group) -> None:
        items = list(filter(is_encoded, group.items))
        if not items:  # a barrier
            group.finish()
            return
        self._sequence += 1
        self.groups += 1
        left = items
        while left:
            refused = self._send(left)
            left = [] if refused is None else [item for at, item in enumerate(left) if at != refused]
        self._stored(ends_of(items))
        failure = first_failure(items) if group.offered else None
        if failure is not None:
            self.offered_failure.note(failure)
        group.finish()

    def _send(self, items: Items) -> int | None:
        """Send these as one request until it is answered; the index of one that must be left out, or None."""
        question = self._question(items)
        pauses, in_doubt = Pauses(), False
        while True:
            attempt = self._exchange.attempt(question, monotonic() + _ATTEMPT_S)
            answer = attempt.answer
            if attempt.problem is not None:
                self._fail_all(items, attempt.problem, in_doubt=in_doubt or attempt.was_sent)
                return None
            if answer is not None and answer.status == 200:
                self._fill_in(items, answer)
                self._note_trouble("")
                return None
            if answer is not None and 400 <= answer.status < 500 and answer.status not in (408, 429):
                return self._refused(items, answer, in_doubt=in_doubt)
            in_doubt = in_doubt or (attempt.was_sent and not _is_certain(answer))
            if in_doubt and self._stored_last:
                question = question._replace(headers={**question.headers, "Holdfast-Stored": str(self._stored_last)})
            self._note_trouble(attempt.why or f"status={answer.status if answer is not None else 0}")
            self._exchange.pause(pauses.next(answer))

    def _question(self, items: Items) -> Question:
        number = str(self._sequence)
        headers = {
            "Content-Type": MSGPACK,
            "Accept": MSGPACK,
            "Holdfast-Session": self._session,
            "Holdfast-Sequence": number,
            "Holdfast-Floor": number,
        }
        return Question("POST", ("v1", "groups"), body=encode_group([item_of(item) for item in items]), headers=headers)

    def _fill_in(self, items: Items, answer: Answer) -> None:
        try:
            outcomes = decode_outcome(answer.body).items
            fill_in(items, outcomes, self._partitions)
            if any(outcome.error is None for outcome in outcomes):
                self._stored_last = self._sequence
        except ValueError as error:
            logger.error("an answer of the server cannot be understood: %s", error, extra={"action": "bad_answer"})
            unknown = _unknown("the server's answer cannot be understood")
            for item in items:
                item.fail(unknown)

    def _refused(self, items: Items, answer: Answer, *, in_doubt: bool) -> int | None:
        error = error_of(answer.status, answer.body, str(self._exchange.address))
        place = answer.headers.get("holdfast-item", "")
        index = int(place) if place.isascii() and place.isdigit() and len(place) < 10 else -1
        if in_doubt or not 0 <= index < len(items):
            self._fail_all(items, error, in_doubt=in_doubt)
            return None
        items[index].fail(error)
        return index

    def _fail_all(self, items: Items, error: HoldfastError, *, in_doubt: bool) -> None:
        """Nothing of these was written; or, in doubt, nobody knows."""
        if in_doubt and not isinstance(error, OutcomeUnknown):
            told, error = error, _unknown(f"it may have been written before this: {error.message}")
            error.__cause__ = told
        for item in items:
            item.fail(error)

    def _note_trouble(self, why: str) -> None:
        """Say once that the server does not answer, and once that it does again."""
        if why and not self._is_troubled:
            logger.warning(
                "the server at %s does not take records: %s; they wait here and are sent again",
                self._exchange.address,
                why,
                extra={"action": "server_away"},
            )
        elif not why and self._is_troubled:
            logger.info("the server at %s takes records again", self._exchange.address, extra={"action": "server_back"})
        self._is_troubled = bool(why)


def _is_certain(answer: Answer | None) -> bool:
    """Whether an answer says that nothing was written: there was no room, or no time to begin."""
    return answer is not None and answer.status in (408, 429)


def _unknown(message: str) -> OutcomeUnknown:
    return OutcomeUnknown(message, hint="read the topic back; give idempotency_key to make retries safe")


def _not_sent() -> Unavailable:
    return Unavailable("the client was closed before this was sent; nothing was written", hint="connect again")
