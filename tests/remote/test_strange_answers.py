"""Answers that are not what was asked for: a verb raises Unavailable, with a hint, and never a decoder's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Log, Unavailable, execution_id
from holdfast.remote.http.exchange import Attempt, Exchange, ServerAnswer

pytestmark = pytest.mark.disk

ID = str(execution_id("strange", "answers"))
VERBS: dict[str, Callable[[Log], Any]] = {
    "topics": lambda log: log.topics(),
    "topic": lambda log: log.topic("never-asked-for"),
    "marks": lambda log: log.marks("never-asked-for"),
    "consumers": lambda log: log.consumers(),
    "producers": lambda log: log.producers(),
    "last": lambda log: log.producer("device").last,
    "spaces": lambda log: log.spaces(),
    "get": lambda log: log.space("s").get("k"),
    "items": lambda log: list(log.space("s").items()),
    "retain": lambda log: log.retain(),
    "compact": lambda log: log.compact(),
    "reconcile": lambda log: log.reconcile(),
    "unshipped": lambda log: log.unshipped(),
    "stats": lambda log: log.stats(),
    "list": lambda log: log.executions.list(),
    "show": lambda log: log.executions.show(ID),
    "result": lambda log: log.executions.result(ID),
    "cancel": lambda log: log.executions.cancel(ID),
    "signal": lambda log: log.executions.signal(ID, "s"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_that_it_does_not_understand(remote: Log, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    for body in (b"[1]", b"7", b"\xff", b""):
        answer = ServerAnswer(200, {}, body)
        monkeypatch.setattr(Exchange, "ask", lambda *_, answer=answer: answer)
        monkeypatch.setattr(Exchange, "attempt", lambda *_, answer=answer: Attempt(answer))
        with pytest.raises(Unavailable, match="not understood") as caught:
            VERBS[verb](remote)
        assert caught.value.hint
