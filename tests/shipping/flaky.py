"""A store that fails, hangs and loses replies by rules, and remembers what was asked of it.

Rules are matched by verb and by a part of the key, the oldest first; a rule with `times` is used up. A request that
meets no rule goes through. `Faults` outlives the stores that it spoils: a log that is opened again meets the same ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from holdfast.store.port import Body, Cause, ObjectInfo, Store, StoreRefused, StoreUnavailable

VERBS = ("create", "get", "get_range", "head", "list", "delete")
PATIENCE_S = 30.0

Result = TypeVar("Result")


class Request(NamedTuple):
    """One request, as it came in; a delete is one per key."""

    verb: str
    key: str


class Gate:
    """Holds requests until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.arrived = threading.Event()
        """Set when the first request stands before it."""

    def pass_through(self) -> None:
        """By a request: wait until the gate is open."""
        self.arrived.set()
        self._open.wait(PATIENCE_S)

    def open(self) -> None:
        """Let all go, also those that come later."""
        self._open.set()


class Rule:
    """One thing that is wrong, and with what."""

    def __init__(self, verbs: Sequence[str], part: str, times: int | None, *, after: bool) -> None:
        self.verbs, self.part, self.times, self.after = verbs, part, times, after
        self.gate: Gate | None = None
        self.error: Callable[[str], Exception] | None = None

    def end(self) -> None:
        """It is wrong no more; a request that hangs still does."""
        self.times = 0

    def take(self, verb: str, keys: Sequence[str]) -> bool:
        """Whether it applies; then it has been used once more."""
        if self.times == 0 or verb not in self.verbs or not any(self.part in key for key in keys):
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class Faults:
    """What is wrong with a store; may be changed at any time, from any thread."""

    def __init__(self) -> None:
        self._rules: list[Rule] = []
        self._outage: Rule | None = None
        self._changed = threading.Condition()
        self.seen: list[Request] = []
        """Requests in the order in which they came, before anything became of them."""
        self.done: list[Request] = []
        """Requests that succeeded and whose replies arrived, in that order."""

    # -- for tests ----------------------------------------------------------------------------------------

    def fail(
        self,
        part: str = "",
        *,
        verbs: Sequence[str] = ("create",),
        times: int | None = None,
        cause: Cause = "server_error",
    ) -> Rule:
        """Do nothing, and say that it may pass."""
        rule = self._add(verbs, part, times, after=False)
        rule.error = lambda key: StoreUnavailable(f"the store does not answer key={key}", cause=cause)
        return rule

    def refuse(self, part: str = "", *, verbs: Sequence[str] = ("create",), times: int | None = None) -> Rule:
        """Do nothing, and say that it will not pass by itself."""
        rule = self._add(verbs, part, times, after=False)
        rule.error = lambda key: StoreRefused(f"the store refuses key={key}", cause="forbidden")
        return rule

    def lose(self, part: str = "", *, verbs: Sequence[str] = ("create",), times: int | None = 1) -> Rule:
        """Do it, and lose the reply."""
        rule = self._add(verbs, part, times, after=True)
        rule.error = lambda key: StoreUnavailable(f"the connection was reset key={key}", cause="reset")
        return rule

    def hold(self, part: str = "", *, verbs: Sequence[str] = ("create",), times: int | None = None) -> Gate:
        """Hang until the gate is opened; then go through."""
        rule = self._add(verbs, part, times, after=False)
        rule.gate = Gate()
        return rule.gate

    def hold_reply(self, part: str = "", *, times: int | None = None) -> Gate:
        """Do it at once, and answer when the gate is opened."""
        rule = self._add(("create",), part, times, after=True)
        rule.gate = Gate()
        return rule.gate

    def away(self) -> None:
        """The whole store is unreachable, until it is `back`; rules that are made meanwhile hold from then on."""
        self._outage = self.fail(verbs=VERBS, cause="refused")

    def back(self) -> None:
        """The outage is over; other rules stay."""
        if self._outage is not None:
            self._outage.end()

    def heal(self) -> None:
        """No more rules; a request that hangs goes on."""
        rules, self._rules = self._rules, []
        for rule in rules:
            if rule.gate is not None:
                rule.gate.open()

    def count(self, verb: str, part: str = "") -> int:
        """How many such requests came in."""
        return sum(request.verb == verb and part in request.key for request in list(self.seen))

    def wait(self, condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Wait until something is so that a request makes so."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), "it did not happen"

    def wait_seen(self, verb: str, part: str = "", times: int = 1) -> None:
        """Wait until so many requests came in."""
        self.wait(lambda: self.count(verb, part) >= times)

    def wait_done(self, verb: str, part: str = "", times: int = 1) -> None:
        """Wait until so many requests succeeded."""
        self.wait(lambda: sum(r.verb == verb and part in r.key for r in list(self.done)) >= times)

    # -- for the store ------------------------------------------------------------------------------------

    def run(self, verb: str, keys: Sequence[str], call: Callable[[], Result]) -> Result:
        """One request through the rules."""
        requests = [Request(verb, key) for key in keys]
        with self._changed:
            self.seen += requests
            self._changed.notify_all()
        rule = next((rule for rule in list(self._rules) if rule.take(verb, keys)), None)
        if rule is None:
            answer = call()
        elif rule.after:
            answer = call()
            self._meet(rule, keys)
        else:
            self._meet(rule, keys)
            answer = call()
        with self._changed:
            self.done += requests
            self._changed.notify_all()
        return answer

    def _meet(self, rule: Rule, keys: Sequence[str]) -> None:
        if rule.gate is not None:
            rule.gate.pass_through()
        if rule.error is not None:
            raise rule.error(keys[0])

    def _add(self, verbs: Sequence[str], part: str, times: int | None, *, after: bool) -> Rule:
        rule = Rule(verbs, part, times, after=after)
        self._rules.append(rule)
        return rule


class FlakyStore:
    """Any store, spoiled."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, key: str, body: Body) -> None:
        self._faults.run("create", [key], lambda: self._store.create(key, body))

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        return self._faults.run("get", [key], lambda: self._store.get(key, bytes_max))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._faults.run("get_range", [key], lambda: self._store.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo | None:
        return self._faults.run("head", [key], lambda: self._store.head(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(self._faults.run("list", [prefix], lambda: tuple(self._store.list(prefix, after))))

    def folders(self, prefix: str) -> Sequence[str]:
        return self._faults.run("list", [prefix], lambda: self._store.folders(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        self._faults.run("delete", keys, lambda: self._store.delete(keys))

    def close(self) -> None:
        self._store.close()
