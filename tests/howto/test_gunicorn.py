"""A WSGI application under gunicorn with two workers, as its page shows it: every acknowledged order is stored once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.howto.customers import Customers
from tests.howto.pages import command, write_files
from tests.howto.servers import Server, owner

pytestmark = pytest.mark.crash
COMMANDS = ["gunicorn -w", "gunicorn --preload"]
"""With --preload the log is opened before gunicorn forks, by its main process; without, by each worker."""


@pytest.fixture
def folder(tmp_path):
    write_files("gunicorn.md", tmp_path)
    return tmp_path


def gunicorn(folder, beginning):
    return Server([*command("gunicorn.md", beginning), "--bind", "127.0.0.1:0", "--no-control-socket"], folder)


@pytest.mark.parametrize("beginning", COMMANDS)
def test_workers_are_replaced_and_killed_while_orders_come(folder, beginning):
    """Both workers write; reload, kill -9 of a worker (without --preload: of the owner) and SIGTERM lose nothing."""
    with gunicorn(folder, beginning) as server, Customers(server.port()) as customers:
        first = customers.wait_for_workers(2)
        server.send(signal.SIGHUP)
        second = customers.wait_for_workers(2, besides=first)
        server.wait_for("Worker exiting", count=2)
        customers.wait_for_orders(20)

        is_main = owner(folder / "data") == server.process.pid
        assert is_main == ("preload" in beginning)
        killed = min(second) if is_main else owner(folder / "data")
        os.kill(killed, signal.SIGKILL)
        customers.wait_for_workers(1, besides=first | second)
        customers.stop()
        assert server.end() == 0
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")
