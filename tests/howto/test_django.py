"""Django, as its page shows it: under gunicorn with two workers, under uvicorn, and with its own server's reloader."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from tests.howto.customers import Answer, Customers, ask
from tests.howto.pages import command, write_files
from tests.howto.servers import Server, environment, free_port, owner

pytestmark = pytest.mark.crash
PAGE = "django.md"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What `startproject` and `startapp` make, with the page's files in it."""
    folder = tmp_path_factory.mktemp("project")
    admin = Path(sys.executable).parent / "django-admin"
    for words in ([str(admin), "startproject", "mysite", "."], [sys.executable, "manage.py", "startapp", "orders"]):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    write_files(PAGE, folder)
    return folder


@pytest.fixture
def folder(project, tmp_path):
    return Path(shutil.copytree(project, tmp_path / "site"))


def test_workers_are_replaced_and_killed_while_orders_come(folder):
    """Both workers write; reload, kill -9 of the owner and SIGTERM lose nothing and double nothing."""
    gunicorn = [*command(PAGE, "gunicorn"), "--bind", "127.0.0.1:0", "--no-control-socket"]
    with Server(gunicorn, folder) as server, Customers(server.port()) as customers:
        first = customers.wait_for_workers(2)
        server.send(signal.SIGHUP)
        second = customers.wait_for_workers(2, besides=first)
        customers.wait_until(lambda _: owner(folder / "data") in second)
        os.kill(owner(folder / "data"), signal.SIGKILL)
        customers.wait_for_workers(1, besides=first | second)
        customers.stop()
        assert server.end() == 0
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


@pytest.mark.full("uvicorn's workers are those of FastAPI's page")
def test_coroutines_under_uvicorn(folder):
    """The asynchronous view, with two workers, and a lifespan that closes the log."""
    urls = folder / "mysite" / "urls.py"
    urls.write_text(urls.read_text().replace("orders.views", "orders.async_views"))
    with (
        Server([*command(PAGE, "uvicorn"), "--port", "0", "--no-access-log"], folder) as server,
        Customers(server.port()) as customers,
    ):
        customers.wait_for_workers(2)
        customers.stop()
        assert server.end() == 0
    customers.check(folder / "data")
    server.check_clean_end(folder / "data")


def test_the_reloader_and_a_command_beside_it(folder):
    """A changed file makes a new process, which goes on with the log; a command joins; Ctrl-C loses nothing."""
    port = free_port()
    words = [sys.executable, "manage.py", "runserver", f"127.0.0.1:{port}"]
    append = "from orders.log import topic; print(topic('orders').append(b'by a command').offset)"
    with Server(words, folder) as server:
        server.wait_for("Quit the server")
        first = order(port, b"first")
        (folder / "orders" / "views.py").write_text((folder / "orders" / "views.py").read_text() + "\n# changed\n")
        server.wait_for("Quit the server", count=2)
        second = order(port, b"second")
        by_command = subprocess.run(
            [sys.executable, "manage.py", "shell", "-c", append],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            env=environment(folder),
        )
        server.interrupt()
        assert server.wait() == 0
    assert first.worker != second.worker
    assert [first.offset, second.offset, int(by_command.stdout.split()[-1])] == [0, 1, 2]
    with holdfast.open(folder / "data", read_only=True) as log:
        assert [record.payload for record in log.topic("orders").read()] == [b"first", b"second", b"by a command"]
    assert "Traceback" not in server.output


def order(port: int, what: bytes) -> Answer:
    response = ask(port, "/orders", what, {})
    assert response.status == 200, response
    return Answer.of(response)
