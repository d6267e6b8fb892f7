"""In a notebook, by a real kernel: a loop runs in its thread, cells may block, and nothing is said about it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [
    pytest.mark.disk,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the notebook's own tools
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Run a notebook in this folder, with a kernel of this very environment; returns it with its outputs."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)

    def run(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
        client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
        return client.execute()

    return run


def said(notebook: nbformat.NotebookNode) -> str:
    """What cells wrote to stderr: warnings among it."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "".join(out.text for cell in cells for out in cell.outputs if out.get("name") == "stderr")


def test_the_example_runs_without_a_word_on_stderr(kernel):
    """Blocking cells, a cell that submits more than the queue holds, and cells that await."""
    done = kernel(nbformat.read(EXAMPLE, 4))
    assert said(done) == ""
    results = [out.data["text/plain"] for cell in done.cells for out in cell.get("outputs", []) if "data" in out]
    assert re.match(r"Receipt\(topic='orders', partition=\d, offset=0", results[0])
    assert results[-1].startswith("(30003,")


def test_a_coroutine_in_a_cell_is_still_warned(kernel):
    """Who blocks the kernel's loop from a coroutine hears of it."""
    cells = [
        "import holdfast\nlog = holdfast.open('data')\ntopic = log.topic('t')",
        "topic.append(b'fine')\nawait topic.append_async(b'fine, too')",
        "async def wrong():\n    topic.append(b'blocks')\nawait wrong()",
        "log.close()",
    ]
    done = kernel(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells]))
    assert said(done).count("RuntimeWarning: append() blocks the event loop") == 1
    assert not done.cells[1].outputs or "stderr" not in str(done.cells[1].outputs)
