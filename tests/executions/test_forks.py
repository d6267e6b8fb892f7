"""Forks and rewinds of real programs: up to the cut they are what was recorded, behind it a fresh run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Log
from holdfast.execution.journal.entries import StepResult
from holdfast.execution.journal.execution_record import in_order
from holdfast.execution.work.execution_views import unfolded

pytestmark = pytest.mark.disk

NAMES = ("a", "b", "c")


class Program:
    """Steps in scopes, values of the context; it notes what it really called."""

    def __init__(self, plan: list[tuple[str, str]]) -> None:
        self.plan = plan
        self.called: list[str] = []

    def __call__(self, ctx: Any) -> list[Any]:
        found: list[Any] = []
        for kind, name in self.plan:
            found.append(self._one(ctx, kind, name))
        return found

    def _one(self, ctx: Any, kind: str, name: str) -> Any:
        match kind:
            case "step":
                return ctx.step(name, self._call, name)
            case "scope":
                return ctx.scope(f"in {name}").step(name, self._call, name)
            case "now":
                return ctx.now().isoformat()
            case "uuid":
                return str(ctx.uuid())
            case _:
                return ctx.version(f"version {name}", 3)

    def _call(self, name: str) -> str:
        self.called.append(name)
        return f"{name} {len(self.called)}"


def run(log: Log, program: Program, execution: Any) -> Any:
    with log.execution("demo", id=execution) as ctx:
        ctx.set_result(program(ctx))
    return log.executions.result(ctx.id), ctx.id


def results(log: Log, execution: Any) -> list[tuple[str, bytes, bytes]]:
    """Path, key and payload of each step, in order."""
    entries = unfolded(in_order(log._executions.room().store.load(execution)[0]))
    return [(one.path, one.key, one.payload) for one in entries if isinstance(one, StepResult)]


plans = st.lists(
    st.tuples(st.sampled_from(["step", "scope", "now", "uuid", "version"]), st.sampled_from(NAMES)),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one if one[0] == "version" else object(),
)


@given(plans, st.data())
@settings(max_examples=15, deadline=None)
def test_a_fork_and_a_rewind_are_the_original_up_to_the_cut_and_fresh_behind_it(tmp_path_factory, plan, data):
    """Recorded values are given back without a call; what is behind the cut is called again, once, and recorded."""
    with holdfast.open(tmp_path_factory.mktemp("log") / "log") as log:
        first = Program(plan)
        original, execution = run(log, first, None)
        paths = [step.path for step in log.executions.show(execution).steps]
        if not paths:
            return
        cut = data.draw(st.sampled_from(paths))
        kept = paths.index(cut)
        before = results(log, execution)
        forked = log.executions.fork(execution, before=cut)
        again = Program(plan)
        value, _ = run(log, again, forked)
        assert value[:kept] == original[:kept]
        assert results(log, execution) == before  # the original is as it was
        steps = [kind in ("step", "scope") for kind, _ in plan]
        assert len(again.called) == sum(steps[kept:])
        log.executions.rewind(execution, before=cut)
        rewound = Program(plan)
        assert run(log, rewound, execution)[0][:kept] == original[:kept]
        assert rewound.called == again.called
        assert [path for path, _, _ in results(log, execution)] == [path for path, _, _ in before]
        whole = Program(plan)
        assert run(log, whole, execution)[0] == log.executions.result(execution)
        assert whole.called == []  # all of it is recorded again


def test_large_results_go_with_a_fork_and_leave_with_a_rewind(open_log):
    """A result that is kept beside the journal is copied; after a rewind a shorter one takes its place."""
    log = open_log()
    sizes = [5_000_000, 3_000_000, 1_500_000]

    def program(ctx: Any) -> int:
        return len(ctx.step("large", lambda: "x" * sizes.pop(0))) + ctx.step("small", lambda: 1)

    with log.execution("demo") as ctx:
        ctx.set_result(program(ctx))
    forked = log.executions.fork(ctx.id, before="small")
    with log.execution("demo", id=forked) as ctx2:
        assert program(ctx2) == 5_000_001
    log.executions.rewind(ctx.id, before="large")
    with log.execution("demo", id=ctx.id) as ctx3:
        assert program(ctx3) == 3_000_001
    with log.execution("demo", id=ctx.id) as ctx4:
        assert program(ctx4) == 3_000_001
    with log.execution("demo", id=forked) as ctx5:
        assert program(ctx5) == 5_000_001
    assert sizes == [1_500_000]


def test_a_settled_effect_is_replayed_and_not_run(open_log):
    """What was decided by hand is what the program gets; as an error, too."""
    log = open_log()
    calls: list[str] = []

    def program(ctx: Any) -> Any:
        options = {"effect": "exactly_once_guarded", "on_ambiguous": "fail"}
        return ctx.step("charge", lambda: calls.append("charge") or crash(), **options)

    def crash() -> None:
        raise KeyboardInterrupt

    found = []
    for outcome in ({"value": "paid"}, {"error": ValueError("refused")}):
        with pytest.raises(KeyboardInterrupt), log.execution("demo") as ctx:
            program(ctx)
        log.executions.settle(ctx.id, "charge", **outcome)
        try:
            with log.execution("demo", id=ctx.id) as again:
                found.append(program(again))
        except ValueError as error:
            found.append(str(error))
    assert found == ["paid", "refused"]
    assert calls == ["charge"] * 2
