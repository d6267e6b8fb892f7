"""FastAPI under uvicorn with two workers, as its page shows it: every acknowledged order is stored once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.howto.customers import Customers
from tests.howto.pages import command, write_files
from tests.howto.servers import Server, owner

pytestmark = pytest.mark.crash
QUIET = ["--port", "0", "--no-access-log"]


@pytest.fixture
def folder(tmp_path):
    write_files("fastapi.md", tmp_path)
    return tmp_path


def uvicorn(folder, *options):
    return Server([*command("fastapi.md", "uvicorn app:app --workers"), *QUIET, *options], folder)


def test_workers_are_restarted_while_orders_come(folder):
    """Both workers write; SIGHUP replaces both, and the new ones own the log; SIGTERM leaves it closed and sealed."""
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
    """kill -9 of the worker that owns the log: the other one goes on, and nothing is lost or doubled."""
    with uvicorn(folder) as server, Customers(server.port()) as customers:
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
