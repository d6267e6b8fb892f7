"""Sessions against dictionaries: numbers sent again, late, early and twice, floors, expiry, refusals, owners that die.

The model knows the table of docs/formats/0015-sessions.md and nothing else. After every step all records are there that
it expects, once and in order; what a number was answered is answered again for as long as it is kept.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import holdfast
from holdfast import Full, HoldfastError, Invalid, Keyring, OutcomeUnknown, Settings, Unavailable
from holdfast.journal.session_access import ForwardedRows, Outcome
from holdfast.testing.manual_clock import ManualClock

ANSWERS, SESSIONS = 3, 4
HOUR = 3600.0
IDLE_US, EXPIRY_US = 60_000_000, int(24 * HOUR) * 1_000_000
MEMBERS = [bytes([65 + n]) * 16 for n in range(4)]
PRODUCERS = [b"device-1", b"device-2", b"device-3"]


class Known:
    """What the model knows of one session."""

    def __init__(self, is_producer: bool, used: int) -> None:
        self.is_producer = is_producer
        self.last = 0
        self.put = 0
        """Of a member: the highest number that this owner was sent in order, stored or refused."""
        self.floor = 1
        self.answers: dict[int, int] = {}
        """The offset that each number got."""
        self.refused: set[int] = set()
        """Of a member: what this owner refused."""
        self.used = used

    def verdict(self, number: int, floor: int) -> int | type[HoldfastError] | None:
        """The offset that it gets again, the error, or None: it is written."""
        if number in self.refused:
            return Unavailable
        if number in self.answers:
            return self.answers[number]
        if number < self.floor:
            return Invalid if self.is_producer else OutcomeUnknown
        expected = max(self.next, floor)
        if number != expected:
            return Invalid if number > expected else Unavailable
        outstanding = [one for one in self.answers if one >= floor]
        return Invalid if not self.is_producer and len(outstanding) >= ANSWERS else None

    @property
    def next(self) -> int:
        """The number that comes next, by somebody who leaves none out."""
        return max(self.last, self.put) + 1

    def write(self, number: int, floor: int, offset: int, now: int) -> None:
        self.last, self.used = number, now
        self.answers[number] = offset
        if self.is_producer:
            floor = max(self.floor, number - ANSWERS + 1)
        self.floor = max(self.floor, floor)
        self.answers = {one: answer for one, answer in self.answers.items() if one >= self.floor}


class SessionsMachine(RuleBasedStateMachine):
    """The rules."""

    keyed = False
    files = True

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp())
        self.generation = 0
        self.clock = ManualClock(seed=1)
        self.keyring = Keyring.generate(clock=ManualClock(seed=1)) if self.keyed else None
        self.model: dict[bytes, Known] = {}
        self.records: list[bytes] = []
        self.sent = 0
        self.open()

    def open(self):
        journal = {"sessions_max": SESSIONS, "session_answers_max": ANSWERS, "session_expiry_ms": 24 * HOUR * 1000}
        journal["clock_jump_max_ms"] = 1e13  # here all clocks are right
        if not self.files:
            journal["group_file_bytes"] = 0
        given = Settings.from_mapping({"journal": journal, "segments": {"seal_on_close": False}})
        self.log = holdfast.open(
            self.root / str(self.generation), keyring=self.keyring, settings=given, clock=self.clock
        )
        self.topic = self.log.topic("t")
        self.partition = self.log._journal.topics["t"][0]

    def send(self, name: bytes, number: int, floor: int, count: int) -> Outcome:
        rows = [(b"%d.%d" % (self.sent, n), self.clock.now_us(), None, None) for n in range(count)]
        self.sent += 1
        item, sessions = ForwardedRows(self.partition, rows, 20), self.log._journal.sessions
        sent = sessions.put(name, number, floor, [item], 20) if floor else sessions.produce(name, number, item, 20)
        assert sent.wait(20)
        (outcome,) = sent.outcomes()
        if outcome.error is not None:
            raise outcome.error.error()
        return outcome

    def check(self, name: bytes, number: int, floor: int, count: int = 1) -> None:
        """Send something, and compare what comes of it with what the model says."""
        self.clock.advance(0.001)  # no two are used at the same moment
        now = self.clock.now_us()
        known = self.model.get(name) or Known(not floor, now)
        verdict = known.verdict(number, floor)
        if floor:
            known.refused = {one for one in known.refused if one >= floor}
        written = [b"%d.%d" % (self.sent, n) for n in range(count)]
        if verdict is None and name not in self.model and len(self.model) >= SESSIONS:
            oldest = min(self.model, key=lambda one: self.model[one].used)
            if self.model[oldest].used > now - IDLE_US:
                verdict = Full
            else:
                del self.model[oldest]
        if verdict is None:
            outcome = self.send(name, number, floor, count)
            assert (outcome.runs[0].first, outcome.runs[0].count) == (len(self.records), count)
            assert not outcome.runs[0].repeated
            known.write(number, floor, len(self.records), now)
            self.model[name] = known
            self.records += written
            for one in [one for one in self.model if self.model[one].used <= now - EXPIRY_US]:
                del self.model[one]
        elif isinstance(verdict, int):
            outcome = self.send(name, number, floor, count)
            assert (outcome.runs[0].first, outcome.runs[0].repeated) == (verdict, not floor)
        else:
            with pytest.raises(verdict) as caught:
                self.send(name, number, floor, count)
            assert isinstance(caught.value, Full) == (verdict is Full), caught.value

    @rule(name=st.sampled_from(MEMBERS), count=st.integers(1, 3), answered=st.booleans())
    def go_on(self, name, count, answered):
        known = self.model.get(name) or Known(False, 0)
        number = known.next
        self.check(name, number, number if answered else min(known.floor, number), count)

    @rule(name=st.sampled_from(MEMBERS), back=st.integers(-3, 5), held=st.integers(0, 4))
    def send_anything(self, name, back, held):
        known = self.model.get(name) or Known(False, 0)
        number = max(1, known.last + 1 - back)
        self.check(name, number, max(1, number - held))

    @rule(name=st.sampled_from(PRODUCERS), back=st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, -1]))
    def produce(self, name, back):
        known = self.model.get(name) or Known(True, 0)
        self.check(name, max(1, known.last + 1 - back), 0)

    @rule(name=st.sampled_from([*MEMBERS, *PRODUCERS]))
    def refuse(self, name):
        """The disk is full for one group: it is as if it had not been sent, but a member gets the same again."""
        is_producer = name in PRODUCERS
        known = self.model.get(name)
        expiry = self.clock.now_us() - EXPIRY_US
        if known is None or any(one.used <= expiry for one in self.model.values()):
            return  # those that expired leave with a group, also if that is refused
        number = known.next
        if known.verdict(number, 0 if is_producer else number) is not None:
            return
        known.refused = set() if is_producer else {one for one in known.refused if one >= number}
        backend = self.log._journal._backend
        with pytest.MonkeyPatch.context() as patch:
            for owner, verb in ((backend, "commit"), (backend.filed, "append_group")):
                patch.setattr(owner, verb, _full)
            with pytest.raises(Unavailable, match="planted"):
                self.send(name, number, 0 if is_producer else number, 1)
        if not is_producer:
            known.refused.add(number)
            known.put = number

    @rule(hours=st.sampled_from([0.001, 0.02, 1.0, 13.0, 25.0]))
    def wait(self, hours):
        self.clock.advance(hours * HOUR)

    @rule()
    def append(self):
        """Somebody else appends, without a session."""
        self.topic.append(b"other %d" % self.sent)
        self.records.append(b"other %d" % self.sent)
        self.sent += 1

    @rule(crash=st.booleans())
    def reopen(self, crash):
        before = self.root / str(self.generation)
        if crash:
            self.generation += 1
            shutil.copytree(before, self.root / str(self.generation), ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
        self.log.close()
        self.open()
        for known in self.model.values():
            known.refused, known.put = set(), 0

    @invariant()
    def all_is_there_once(self):
        if not hasattr(self, "log"):
            return
        assert [record.payload for record in self.topic.read()] == self.records
        stored = {info.name: (info.last, info.floor) for info in self.log._journal.sessions.all()}
        assert {name: stored[name] for name in self.model} == {
            name: (known.last, known.floor) for name, known in self.model.items()
        }

    def teardown(self):
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.root)


def _full(*_given):
    raise Unavailable("planted: the disk is full")


class KeyedMachine(SessionsMachine):
    keyed = True


class DatabaseMachine(SessionsMachine):
    files = False


def _case(machine):
    machine.TestCase.settings = settings(
        max_examples=10, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return pytest.mark.disk(machine.TestCase)


@pytest.mark.soak
class TestSessionsForLong(SessionsMachine.TestCase):
    """The same, for long."""

    settings = settings(
        max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestSessions = _case(SessionsMachine)
TestKeyedSessions = _case(KeyedMachine)
TestSessionsInTheDatabase = _case(DatabaseMachine)
