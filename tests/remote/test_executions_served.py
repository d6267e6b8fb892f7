"""Executions of a served log, through `holdfast.connect` and through plain requests: looked at, signalled, settled.

A program waits, and leaves off; the log is served; somebody far away answers; the program goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast import Invalid, NotFound
from holdfast.errors import Denied, ExecutionCanceled, PromiseRejected, Unavailable, WaitTimedOut
from holdfast.execution.steps.context import Context
from tests.remote.cutting_proxy import CuttingProxy, Seen
from tests.remote.served import ServedLog

pytestmark = pytest.mark.crash

UNKNOWN = "018f0000-0000-7000-8000-00000000dead"
ASKED = "/v1/client/executions"


class Leaving(Exception):
    """The program ends before it has what it waits for."""


class Waiting(NamedTuple):
    """A program that waits, in a log that is served."""

    server: ServedLog
    id: str
    token: str


def program(ctx: Context, tokens: list[str], *, leaves: bool) -> tuple[Any, Any]:
    approval = ctx.promise("approval")
    ctx.step("ask", lambda: tokens.append(approval.token()))
    if leaves:
        raise Leaving
    return approval.result(timeout=30), ctx.signal("paid", timeout=30)


def begin(directory: Path) -> tuple[str, str]:
    """Run the program until it waits; its execution, and the token of its promise."""
    tokens: list[str] = []
    with holdfast.open(directory) as log, pytest.raises(Leaving), log.execution("order") as ctx:
        program(ctx, tokens, leaves=True)
    return str(ctx.id), tokens[0]


def finish(directory: Path, execution: str) -> tuple[Any, Any]:
    """Run it again, to its end."""
    with holdfast.open(directory) as log, log.execution("order", id=execution) as ctx:
        return program(ctx, [], leaves=False)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    execution, token = begin(tmp_path / "log")
    with ServedLog(tmp_path / "log") as server:
        yield Waiting(server, execution, token)


def asked(server: ServedLog, method: str, path: str, body: object = None, token: str = "") -> tuple[int, Any]:
    """What curl would say."""
    connection = HTTPConnection(*server.upstream, timeout=60)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        connection.close()


def test_a_program_gets_what_clients_said_while_it_was_away(waiting: Waiting) -> None:
    server, execution, token = waiting
    with server.connect() as log:
        (found,) = log.executions.list(kind="order")
        assert (str(found.id), found.status) == (execution, "failed")
        assert log.executions.summary(execution) == found == log.executions.show(execution).summary
        assert next(step.path for step in log.executions.show(execution).steps) == "approval"
        value = {"bytes": b"\x00\xff", "list": [1, None]}  # as in a log of this process: more than JSON has
        assert log.executions.resolve(token, value) is True
        assert log.executions.resolve(token, "no") is False
        assert log.executions.reject(token, "no") is False
        number = "018f0000-0000-7000-8000-000000000001"
        assert log.executions.signal(execution, "paid", 12, signal_id=number) is True
        assert log.executions.signal(execution, "paid", 13, signal_id=number) is False
    server.stop()
    assert finish(server.directory, execution) == (value, 12)


def test_the_same_by_plain_requests(waiting: Waiting) -> None:
    server, execution, token = waiting
    assert asked(server, "GET", "/v1/executions?kind=order")[1]["executions"][0]["id"] == execution
    assert asked(server, "GET", f"/v1/executions/{execution}")[1]["summary"]["kind"] == "order"
    for expected in (True, False):
        assert asked(server, "POST", "/v1/promises/resolve", {"token": token, "value": "yes"}) == (
            200,
            {"settled": expected},
        )
    assert asked(server, "POST", "/v1/promises/reject", {"token": token, "reason": "no"}) == (200, {"settled": False})
    body = {"name": "paid", "value": 5, "signal_id": "018f0000-0000-7000-8000-000000000002"}
    for expected in (True, False):
        assert asked(server, "POST", f"/v1/executions/{execution}/signal", body) == (200, {"sent": expected})
    server.stop()
    assert finish(server.directory, execution) == ("yes", 5)


def test_who_is_unknown_and_what_is_unknown_are_distinguished(waiting: Waiting) -> None:
    server, execution, token = waiting
    forged = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
    statuses = {
        ("GET", f"/v1/executions/{UNKNOWN}", None): 404,
        ("GET", "/v1/executions/nonsense", None): 400,
        ("POST", f"/v1/executions/{UNKNOWN}/signal", '{"name": "paid"}'): 404,
        ("POST", f"/v1/executions/{execution}/signal", '{"name": ""}'): 400,
        ("POST", "/v1/promises/resolve", f'{{"token": "{forged}"}}'): 403,
        ("POST", "/v1/promises/resolve", '{"token": "nonsense"}'): 400,
        ("POST", f"/v1/executions/{UNKNOWN}/cancel", "{}"): 404,
    }
    for (method, path, body), status in statuses.items():
        found = asked(server, method, path, None if body is None else json.loads(body))
        assert found[0] == status, (path, found)
        assert found[1]["hint"]
    with server.connect() as log:
        changes = log.executions
        for call in (
            lambda: changes.show(UNKNOWN),
            lambda: changes.signal(UNKNOWN, "paid"),
            lambda: changes.cancel(UNKNOWN),
            lambda: changes.resume(UNKNOWN),
            lambda: changes.fork(UNKNOWN),
            lambda: changes.result(UNKNOWN, 1),
            lambda: changes.rewind(UNKNOWN, before="ask"),
            lambda: changes.settle(UNKNOWN, "ask", 1),
        ):
            with pytest.raises(NotFound):
                call()
        with pytest.raises(PromiseRejected):
            changes.resolve(forged)
        with pytest.raises(Invalid):
            changes.resolve("nonsense")
        with pytest.raises(Unavailable, match="not ended in time"):
            changes.result(changes.start("nobody runs this"), 0.05)


def test_changes_by_hand_work_as_in_a_log_of_this_process(waiting: Waiting) -> None:
    server, execution, _ = waiting
    with server.connect() as log:
        fork = log.executions.fork(execution, before="ask")
        assert log.executions.summary(fork).kind == "order"
        log.executions.rewind(execution, before="ask")
        assert log.executions.summary(execution).status == "queued"
        assert log.executions.cancel(execution, "not needed") == "canceled"
        assert log.executions.cancel(execution) == "canceled"
        with pytest.raises(ExecutionCanceled):
            log.executions.result(execution, 10)
        started = log.executions.start("import", b"\x00", id="018f0000-0000-7000-8000-000000000003", queue="slow")
        assert log.executions.start("import", b"\x00", id=started, queue="slow") == started
        assert log.executions.prune() == 0
        assert {str(one.id) for one in log.executions.list()} == {execution, str(fork), str(started)}


def test_a_change_whose_answer_was_lost_is_made_once_and_answered_as_the_first_time(waiting: Waiting) -> None:
    server, execution, token = waiting
    with CuttingProxy(server.upstream) as proxy, server.connect(proxy.url) as log:
        for lost in ("lose_answer", "half_answer", "lose_request"):
            losses = iter([lost, lost])
            proxy.plan = lambda seen, losses=losses: next(losses, "pass") if seen.path == ASKED else "pass"
            assert log.executions.signal(execution, "paid", lost) is True
        losses = iter(["lose_answer"])
        proxy.plan = lambda seen: next(losses, "pass") if seen.path == ASKED else "pass"
        assert log.executions.resolve(token, "yes") is True  # not False: it was this very call
        assert log.executions.resolve(token, "yes") is False
        sent = [seen for seen in proxy.seen if seen.path == ASKED]
        assert len(sent) == 3 * 3 + 3
        assert len({seen.body for seen in sent}) == 5
    server.stop()
    with holdfast.open(server.directory) as local, local.execution("order", id=execution) as ctx:
        assert program(ctx, [], leaves=False) == ("yes", "lose_answer")
        assert [ctx.signal("paid", timeout=30) for _ in range(2)] == ["half_answer", "lose_request"]
        with pytest.raises(WaitTimedOut):  # there is no fourth one
            ctx.signal("paid", timeout=0.05)


def test_a_server_that_is_killed_over_a_change_makes_it_once(waiting: Waiting) -> None:
    server, execution, token = waiting
    killed: list[Seen] = []

    def plan(seen: Seen) -> str:
        if seen.path == ASKED and not killed:
            killed.append(seen)
            return "lose_answer"
        if killed and len(killed) == 1:
            killed.append(seen)
            server.restart()
        return "pass"

    with CuttingProxy(server.upstream) as proxy:
        proxy.plan = plan
        with server.connect(proxy.url, settings={"journal": {"ack_timeout_ms": 60_000}}) as log:
            assert log.executions.resolve(token, "yes") is True
            assert len(killed) == 2
            assert log.executions.resolve(token, "yes") is False
    assert asked(server, "GET", f"/v1/executions/{execution}")[0] == 200


def test_tokens_say_who_may_do_what(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from holdfast.cli.program import program as command

    execution, promise = begin(tmp_path / "log")
    tokens = {}
    for name, scope, topic in (
        ("reads", "read", "_executions"),
        ("writes", "append", "_executions"),
        ("all", "admin", "_executions"),
        ("other", "admin", "*"),
    ):
        made = CliRunner().invoke(
            command, ["token", "create", str(tmp_path / "log"), name, "--scope", scope, "--topic", topic, "--json"]
        )
        assert made.exit_code == 0, made.output
        tokens[name] = json.loads(made.stdout)["token"]
        (tmp_path / name).write_text(tokens[name])
        (tmp_path / name).chmod(0o600)
    with ServedLog(tmp_path / "log") as server:
        body = {"token": promise, "value": 1}
        for method, path, given, may in (
            ("GET", f"/v1/executions/{execution}", None, {"reads", "all"}),
            ("GET", f"/v1/executions/{execution}?reveal=true", None, {"all"}),
            ("POST", f"/v1/executions/{execution}/signal", {"name": "paid"}, {"writes", "all"}),
            ("POST", "/v1/promises/resolve", body, {"writes", "all"}),
            ("POST", f"/v1/executions/{execution}/cancel", {"reason": "x"}, {"all"}),
        ):
            assert asked(server, method, path, given)[0] == 401
            assert asked(server, method, path, given, "hft1_00000000_" + "A" * 43)[0] == 401
            for name, token in tokens.items():
                status, answer = asked(server, method, path, given, token)
                assert (status < 300) == (name in may), (name, path, answer)
                assert name in may or status == 403
        with server.connect(token=f"file:{tmp_path / 'writes'}") as log:
            assert log.executions.signal(execution, "paid") is True
            for denied in (lambda: log.executions.cancel(execution), log.executions.list, log.executions.prune):
                with pytest.raises(Denied):
                    denied()


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x93\xc4\x10" + b"x" * 16 + b"\xa5prune\x81\xa1x\x01", b"\x93\xc4\x01x\xa5prune\x80"],
    ids=["nothing", "no MessagePack", "a field that nobody knows", "a short id"],
)
def test_what_is_nothing_that_can_be_asked_for_is_refused(served: ServedLog, body: bytes) -> None:
    connection = HTTPConnection(*served.upstream, timeout=60)
    connection.request("POST", ASKED, body, {"content-type": "application/msgpack"})
    assert connection.getresponse().status == 400
    connection.close()
