"""What newcomers get wrong first: the pages' programs without `share=True`. The output names the remedy."""

from __future__ import annotations

import subprocess

import pytest

from tests.howto.customers import ask
from tests.howto.pages import command, write_files
from tests.howto.servers import Server

pytestmark = pytest.mark.disk
REMEDY = r"hint: close it there first, or open it with share=True in every process that uses it"


@pytest.fixture
def forgetful(tmp_path):
    """Puts a page's program into a folder, without `share=True`."""

    def write(page, name="app.py"):
        write_files(page, tmp_path)
        text = (tmp_path / name).read_text()
        assert ", share=True" in text
        (tmp_path / name).write_text(text.replace(", share=True", ""))
        return tmp_path

    return write


def test_uvicorn_stops_and_says_why(forgetful):
    """The second worker is refused, the hint says what is missing, and uvicorn ends."""
    folder = forgetful("fastapi.md")
    with Server([*command("fastapi.md", "uvicorn app:app --workers"), "--port", "0"], folder) as server:
        server.wait_for(REMEDY)
        server.wait()


def test_gunicorn_stops_and_says_why(forgetful):
    """The second worker is refused, the hint says what is missing, and gunicorn ends."""
    folder = forgetful("gunicorn.md")
    words = [*command("gunicorn.md", "gunicorn -w"), "--bind", "127.0.0.1:0", "--no-control-socket"]
    with Server(words, folder) as server:
        server.wait_for(REMEDY)
        server.wait_for("Worker failed to boot")
        assert server.wait() == 3


def test_a_log_from_before_the_fork_says_why(forgetful):
    """With --preload workers start, and every append in them is refused with a hint."""
    folder = forgetful("gunicorn.md")
    words = [*command("gunicorn.md", "gunicorn --preload"), "--bind", "127.0.0.1:0", "--no-control-socket"]
    with Server(words, folder) as server:
        assert ask(server.port(), "/", b"x", {}).status == 500
        server.wait_for("Closed: this log was opened before a fork\nhint: .* with share=True it works before and after")
        assert server.end() == 0


@pytest.mark.full("the same refusal in another log")
def test_celery_says_why(forgetful):
    """The second process of the pool is refused with the hint, in Celery's own log."""
    folder = forgetful("celery.md", "tasks.py")
    (folder / "broker").mkdir()
    subprocess.run(command("celery.md", "python send.py"), cwd=folder, check=True)
    with Server(command("celery.md", "celery"), folder, C_FORCE_ROOT="1") as worker:
        worker.wait_for(REMEDY)
