"""Power cuts and kill -9 while sessions send: what was answered is answered the same, what was not is whole or absent.

A member that takes its answers, a member that does not, and a producer, each with two records under a number. After a
cut every answer that was given and is kept is given again; then each sends again what it was not answered, as a client
does that lost its owner. In the end each number's records are there once, in order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Log, Settings
from holdfast.journal.commit import writer
from holdfast.journal.groups.preallocated_file import GroupFile
from holdfast.journal.session_access import Outcome
from tests.crash.session_victim import NUMBERS, SESSIONS, send, settings_of
from tests.harness.cuts import Cut, examine, record, without_syncs
from tests.harness.kills import kill_after

pytestmark = pytest.mark.crash

Answers = dict[tuple[bytes, int], tuple[int, int]]
"""What each number of each session was answered: the offset of its first record, and its entry."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups reach the database after a few entries."""
    monkeypatch.setattr(writer, "_LATE_ENTRIES_MAX", 4)


def life(root: Path, settings: Settings) -> list[Cut[Answers]]:
    """Three sessions in turns, two owners; promises what was answered so far."""
    answers: Answers = {}

    def live(_disk: object) -> None:
        for numbers in (range(1, NUMBERS // 2), range(NUMBERS // 2, NUMBERS)):
            with holdfast.open(root / "log", settings=settings) as log:
                for number in numbers:
                    for name in SESSIONS:
                        answers[name, number] = placed(send(log, name, number))
                    if number % 3 == 0:
                        log.topic("t").append(b"other", idempotency_key=b"%d" % number)  # through the database

    return record(root, live, lambda: dict(answers))


def placed(outcome: Outcome) -> tuple[int, int]:
    assert outcome.error is None, outcome.error
    (run,) = outcome.runs
    assert run.count == 2
    return run.first, run.seq


def look(copy: Path, answers: Answers) -> None:
    """All answers again; then what was not answered, again or for the first time; then each number is there once."""
    if not answers and not (copy / "log" / "durable.db").exists():
        return
    with holdfast.open(copy / "log") as log:
        resent(log, answers)
        check(log)


def resent(log: Log, answers: Answers) -> None:
    for (name, number), answer in answers.items():
        # The first one takes its answers: the log forgets them with the next group, which may be durable already.
        if name != SESSIONS[0] or log._journal.sessions.last(name) == number:
            assert placed(send(log, name, number)) == answer, f"answered otherwise: {name!r} {number}"
    for name in SESSIONS:
        last = max((number for one, number in answers if one == name), default=0)
        for number in range(last + 1, last + 3):  # as clients do: what was not answered, in order
            send(log, name, number)


def check(log: Log) -> None:
    found = [record.payload for record in log.topic("t").read() if record.payload != b"other"]
    for name in SESSIONS:
        mine = [payload for payload in found if payload.startswith(name.hex().encode())]
        numbers = sorted({int(payload.split(b" ")[1]) for payload in mine})
        wanted = [b"%s %d %d" % (name.hex().encode(), number, i) for number in numbers for i in (0, 1)]
        assert mine == wanted, f"not once, whole and in order: {name!r}"
        assert numbers == list(range(1, len(numbers) + 1)), f"lost: {name!r}"


@pytest.mark.parametrize("way", ["files", "database"])
def test_every_state_after_a_cut_answers_as_it_was_answered(tmp_path, some, way):
    """At sampled steps of groups in files and of groups in the database."""
    cuts = life(tmp_path / "disk", settings_of(way))
    assert any("/groups/" in cut.name for cut in cuts) == (way == "files")
    sample = [*some(cuts[5:], 10, full=60), cuts[-1]]
    assert examine(sample, look, tmp_path / "states", 3) > len(sample)


@pytest.mark.parametrize("way", ["files", "database"])
def test_this_test_would_notice_an_answer_that_is_not_durable(tmp_path, monkeypatch, way):
    """The planted bug: nothing is synced."""
    with monkeypatch.context() as patch, without_syncs():
        patch.setattr(GroupFile, "sync", lambda self: None)
        cuts = life(tmp_path / "disk", settings_of(way))
    with pytest.raises(AssertionError):
        examine(reversed(cuts[len(cuts) // 3 :: 25]), look, tmp_path / "states", 4)


@pytest.mark.parametrize("way", ["files", "database"])
def test_killed_again_and_again(tmp_path, is_sampled, way):
    """kill -9 of the owner: its successor answers as it did, and what comes again is written once."""
    answers: Answers = {}
    for cycle in range(2 if is_sampled else 5):
        for line in kill_after(20 + 10 * cycle, "tests.crash.session_victim", tmp_path / "log", way):
            name, number, first, seq = line.split(" ")
            place = bytes.fromhex(name), int(number)
            assert answers.setdefault(place, (int(first), int(seq))) == (int(first), int(seq))
        with holdfast.open(tmp_path / "log", settings=settings_of(way)) as log:
            for name in SESSIONS:
                last = max((number for one, number in answers if one == name), default=0)
                if name != SESSIONS[0] or log._journal.sessions.last(name) == last:  # else its answer was taken
                    assert placed(send(log, name, last)) == answers[name, last]
            check(log)
