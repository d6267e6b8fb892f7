"""A WSGI application under gunicorn with two workers, as its page shows it: every acknowledged order is stored once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.howto.customers import Customers
from tests.howto.pages import command, write_files
from tests.howto.servers import PATIENCE, Server, owner, parent

pytestmark = pytest.mark.crash
PAGE = "gunicorn.md"
COMMANDS = ["gunicorn -w", "gunicorn --preload"]
"""With --preload the log is opened before gunicorn forks, by its main process; without, by each worker."""


@pytest.fixture
def folder(tmp_path):
    write_files(PAGE, tmp_path)
    return tmp_path


def gunicorn(folder, beginning):
    return Server([*command(PAGE, beginning), "--bind", "127.0.0.1:0", "--no-control-socket"], folder)


@pytest.mark.parametrize("beginning", COMMANDS)
def test_workers_are_replaced_and_killed_while_orders_come(folder, beginning):
    """Both workers write; reload, kill -9 of the owner and SIGTERM lose nothing and double nothing."""
    with gunicorn(folder, beginning) as server, Customers(server.port()) as customers:
        first = customers.wait_for_workers(2)
        server.send(signal.SIGHUP)
        second = customers.wait_for_workers(2, besides=first)
        members = second | ({server.process.pid} if "preload" in beginning else set())
        customers.wait_until(lambda _: owner(folder / "data") in members)

        killed = owner(folder / "data")
        os.kill(killed if killed in second else min(second), signal.SIGKILL)
        customers.wait_for_workers(1, besides=first | second)
        customers.stop()
        assert server.end() == 0
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


@pytest.mark.full("two more ends of a process, which the gate has in several ways")
def test_the_main_process_is_killed(folder):
    """With --preload it may be the owner: its workers go on until they notice, and leave the log closed."""
    with gunicorn(folder, "gunicorn --preload") as server, Customers(server.port()) as customers:
        customers.wait_for_workers(2)
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


@pytest.mark.full("two more ends of a process, which the gate has in several ways")
def test_a_new_main_process_beside_the_old_one(folder):
    """SIGUSR2: both share the log, and the old one leaves without a trace."""
    with gunicorn(folder, "gunicorn --preload") as server, Customers(server.port()) as customers:
        old = customers.wait_for_workers(2)
        server.send(signal.SIGUSR2)
        new = customers.wait_for_workers(2, besides=old)
        server.send(signal.SIGTERM)
        server.process.wait(PATIENCE)
        customers.wait_until(lambda _: owner(folder / "data") not in {0, server.process.pid} | old)
        customers.stop()
        os.kill(parent(min(new)), signal.SIGTERM)
        server.wait()
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")
