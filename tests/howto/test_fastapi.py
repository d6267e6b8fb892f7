"""FastAPI with two workers, as its page shows it, under uvicorn and gunicorn: what was acknowledged is stored once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.howto.customers import Customers, ask
from tests.howto.pages import command, write_files
from tests.howto.servers import Server, owner

pytestmark = pytest.mark.crash
PAGE = "fastapi.md"


@pytest.fixture
def folder(tmp_path):
    write_files(PAGE, tmp_path)
    return tmp_path


def uvicorn(folder, *options, app="app:app", **variables):
    words = [app if word == "app:app" else word for word in command(PAGE, "uvicorn app:app --workers")]
    return Server([*words, "--port", "0", "--no-access-log", *options], folder, **variables)


def test_workers_are_restarted_while_orders_come(folder):
    """Both workers write; SIGHUP replaces both, and the new ones own the log; SIGTERM leaves it closed."""
    with uvicorn(folder, "--timeout-worker-healthcheck", "60") as server, Customers(server.port()) as customers:
        first = customers.wait_for_workers(2)
        server.send(signal.SIGHUP)
        second = customers.wait_for_workers(2, besides=first)
        customers.wait_until(lambda _: owner(folder / "data") in second)
        assert server.end() == 0
        customers.stop()
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_the_owner_is_killed_while_orders_come(folder, times):
    """kill -9 of the worker that owns the log: the other one goes on, and nothing is lost or doubled.

    Here the program without asyncio.
    """
    with uvicorn(folder, app="blocking:app") as server, Customers(server.port(), path="/blocking/orders") as customers:
        customers.wait_for_workers(2)
        for _ in range(times):
            killed, before = owner(folder / "data"), customers.workers()
            os.kill(killed, signal.SIGKILL)
            customers.wait_until(lambda _, killed=killed: owner(folder / "data") not in (0, killed))
            customers.wait_for_workers(1, besides=before)  # uvicorn has started another one
        customers.stop()
        assert server.end() == 0
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


def test_uvicorn_as_workers_of_gunicorn(folder):
    """Both workers write; kill -9 of the owner, reload and Ctrl-C lose nothing and double nothing."""
    gunicorn = [*command(PAGE, "gunicorn"), "--bind", "127.0.0.1:0", "--no-control-socket"]
    with Server(gunicorn, folder) as server, Customers(server.port()) as customers:
        first = customers.wait_for_workers(2)
        os.kill(owner(folder / "data"), signal.SIGKILL)
        second = customers.wait_for_workers(1, besides=first)
        server.send(signal.SIGHUP)
        customers.wait_for_workers(2, besides=first | second)
        customers.stop()
        server.interrupt()
        assert server.wait() == 0
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


@pytest.mark.full("a reload is an end and a start, which others have")
def test_the_program_is_changed_in_development(folder):
    """--reload: a changed file makes a new process, which goes on with the log; Ctrl-C closes it."""
    words = [word for word in command(PAGE, "uvicorn app:app --workers") if word not in ("--workers", "2")]
    with (
        Server([*words, "--reload", "--port", "0", "--no-access-log"], folder) as server,
        Customers(server.port(), careful=1, careless=0) as customers,
    ):
        first = customers.wait_for_workers(1)
        (folder / "app.py").write_text((folder / "app.py").read_text() + "\n# changed\n")
        customers.wait_for_workers(1, besides=first)
        customers.stop()
        server.interrupt()
        server.wait()
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


def test_an_owner_that_hangs_is_a_503_and_the_same_key_tells(folder):
    """While the owner is stopped an order is answered with 503, in time; repeated under its key it is written once."""
    with uvicorn(folder, app="errors:app", HOLDFAST_JOURNAL__ACK_TIMEOUT_MS="1500") as server:
        port = server.port()
        with Customers(port, careful=2, careless=0) as customers:
            customers.wait_for_workers(2)
        stopped = owner(folder / "data")
        os.kill(stopped, signal.SIGSTOP)
        answer = ask(port, "/orders", b"late", {"Idempotency-Key": "late"})
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        os.kill(stopped, signal.SIGCONT)
        while (answer := ask(port, "/orders", b"late", {"Idempotency-Key": "late"})).status == 503:
            pass
        assert answer.status == 200, answer
        customers.acknowledge("late", answer)
        assert server.end() == 0
    customers.check(folder / "data")
