"""`holdfast spark pipeline`: what is wrong is reported before Spark starts, with the file and its line. No JVM here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import holdfast
from holdfast.cli import exit_codes
from holdfast.cli.verbs.spark_pipeline import pipeline_command
from pyspark_holdfast.pipeline.command import command_line
from tests.cli.conftest import Run, objects

pytestmark = pytest.mark.disk

TABLES = """
from pyspark_holdfast.pipeline import Pipeline, keyed, table


@table
def copies(orders):
    "Every order."
    return orders.select("offset", "value")


@table(inputs="copies", kind=keyed("offset", order_by="offset"))
def latest(copies):
    return copies
"""
PIPELINE = """
pipeline = Pipeline("shop", root={root!r}, tables={tables!r}, of=[copies, latest])
if __name__ == "__main__":
    import sys
    sys.exit(pipeline.main())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log without a store, with ten sealed records."""
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append_batch([b"%d" % n for n in range(10)])
        log.seal()
    return tmp_path / "log"


@pytest.fixture
def file(tmp_path: Path, root: Path) -> Path:
    """A file with a pipeline."""
    path = tmp_path / "shop.py"
    path.write_text(TABLES + PIPELINE.format(root=str(root), tables=str(tmp_path / "tables")))
    return path


def test_status_needs_no_spark(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first run: no table, and all that is settled is still to be read."""
    monkeypatch.setitem(sys.modules, "pyspark_holdfast.spark_session", None)
    done = run("spark", "pipeline", "status", file, "--json")
    assert done.exit_code == 0, done.stderr
    copies, latest = objects(done.stdout)
    assert (copies["name"], copies["kind"], copies["version"], copies["description"]) == (
        "copies",
        "append",
        -1,
        "Every order.",
    )
    assert [one["lag"] for one in copies["inputs"]] == [10]
    assert latest["kind"] == "keyed"
    text = run("spark", "pipeline", "status", file)
    assert text.stdout.splitlines()[0].split() == [
        "table",
        "kind",
        "run",
        "version",
        "rows",
        "files",
        "bytes",
        "lag",
        "last",
        "run",
    ]
    assert text.stdout.splitlines()[1].split() == ["copies", "append", "-", "-", "-", "-", "-", "10", "-"]


def test_tables_of_a_file_without_a_pipeline(run: Run, tmp_path: Path, root: Path) -> None:
    """Places are given; tables in lists count, each once."""
    path = tmp_path / "my tables.py"
    path.write_text(TABLES + "again = [copies, latest]\n")
    refused = run("spark", "pipeline", "status", path)
    assert (refused.exit_code, "--root and --tables" in refused.stderr) == (1, True)
    done = run("spark", "pipeline", "status", path, "--root", root, "--tables", tmp_path / "t", "--json")
    assert [one["name"] for one in objects(done.stdout)] == ["copies", "latest"], done.stderr
    assert objects(done.stdout)[0]["place"].endswith("/t/copies")


def test_places_of_the_command_line_win(run: Run, tmp_path: Path, file: Path, root: Path) -> None:
    """The same file for a test root."""
    with holdfast.open(tmp_path / "other") as log:
        log.topic("orders").append(b"x")
        log.seal()
    done = run("spark", "pipeline", "status", file, "--root", tmp_path / "other", "--tables", tmp_path / "t2", "--json")
    assert objects(done.stdout)[0]["inputs"][0]["lag"] == 1, done.stderr
    assert objects(done.stdout)[0]["place"].endswith("/t2/copies")


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("import os\nx = 1 +\n", 2, "SyntaxError"),
        ("import os\n\nundefined_name\n", 3, "NameError: name 'undefined_name' is not defined"),
        ("def f():\n    raise ValueError('no such thing')\nf()\n", 2, "ValueError: no such thing"),
        ("from pyspark_holdfast.pipeline import table\n@table\ndef nothing():\n    pass\n", 2, "needs an input"),
        ("from pyspark_holdfast.pipeline import keyed\nkeyed('a',\n  order_by='b', buckets=0)\n", 2, "buckets must be"),
        ("import sys\nsys.exit(3)\n", 2, "the file ended the program"),
        ("import no_such_module_at_all\n", 1, "ModuleNotFoundError"),
        ("from pyspark.sql.functions import udf\n@udf('bigint')\ndef f(n):\n    return n\n", 2, "LongType()"),
        ("raise ValueError('\\x1b[31mred')\n", 1, r"\x1b[31mred"),
    ],
)
def test_a_mistake_in_the_file_is_reported_with_its_line(
    run: Run, tmp_path: Path, source: str, line: int, words: str
) -> None:
    """And not with our stack."""
    (tmp_path / "wrong.py").write_text(source)
    done = run("spark", "pipeline", "run", "wrong.py", "--root", "r", "--tables", "t")
    assert done.exit_code == 1
    assert f"error: wrong.py:{line}: " in done.stderr
    assert words in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "starting Spark" not in done.stderr


def test_a_mistake_in_a_file_beside_it_is_reported_with_both_lines(run: Run, tmp_path: Path) -> None:
    """Where it is imported, and where it is."""
    (tmp_path / "beside_it.py").write_text("x = (\n")
    (tmp_path / "wrong.py").write_text("\nimport beside_it\n")
    done = run("spark", "pipeline", "run", "wrong.py", "--root", "r", "--tables", "t")
    assert "error: wrong.py:2: SyntaxError: " in done.stderr
    assert f"{tmp_path / 'beside_it.py'}:1)" in done.stderr


def test_reports_that_cannot_be_written_are_a_warning(run: Run, tmp_path: Path, file: Path) -> None:
    """The run is reported all the same."""
    (tmp_path / "taken").write_text("a file")
    done = run("spark", "pipeline", "run", file, "--root", "nowhere", "--reports", tmp_path / "taken", "--json")
    assert json.loads(done.stdout)["tables"][0]["outcome"] == "failed"
    assert "warning: the report of a run was not written" in done.stderr
    assert (tmp_path / "taken").read_text() == "a file"


def test_a_file_that_is_no_pipeline(run: Run, tmp_path: Path) -> None:
    """Nothing there, a directory, nothing in it."""
    (tmp_path / "empty.py").write_text("")
    for name, kind in (("nowhere.py", "NotFound"), (".", "NotFound"), ("empty.py", "Invalid")):
        done = run("spark", "pipeline", "run", name, "--root", "r", "--tables", "t", "--json")
        error = json.loads(done.stderr.splitlines()[-1])
        assert (done.exit_code, error["error"], bool(error["hint"])) == (1, kind, True)


def test_of_several_pipelines_one_is_named(run: Run, tmp_path: Path, root: Path) -> None:
    """Without a name, the names are listed; with a wrong one, the one that was meant."""
    path = tmp_path / "two.py"
    places = f"root={str(root)!r}, tables={str(tmp_path / 't')!r}"
    path.write_text(
        TABLES + f"a = Pipeline('shop', {places}, of=[copies])\nb = Pipeline('store', {places}, of=[latest, copies])\n"
    )
    assert "there are: shop, store" in run("spark", "pipeline", "status", path).stderr
    assert "did you mean 'store'?" in run("spark", "pipeline", "status", path, "--pipeline", "stora").stderr
    done = run("spark", "pipeline", "status", path, "--pipeline", "store", "--json")
    assert [one["name"] for one in objects(done.stdout)] == ["copies", "latest"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "FILE", "--every", "30"], "unit of time"),
        (["run", "FILE", "--every", "0s"], "apart at least"),
        (["run", "FILE", "--every", "30s", "--available-now"], "exclude each other"),
        (["run", "FILE", "--option", "endpoint"], "NAME=VALUE"),
        (["run", "FILE", "--option", "topic=a"], "is not an option here"),
        (["run", "FILE", "--from", "run:1"], "No such option"),
        (["status", "FILE", "--every", "1s"], "No such option"),
        (["backfill", "FILE"], "Missing argument 'TABLE'"),
        (["run"], "Missing argument 'FILE'"),
        ([], "Missing command"),
        (["stauts", "FILE"], "did you mean 'status'?"),
    ],
)
def test_wrong_usage_ends_before_spark_starts(run: Run, file: Path, arguments: list[str], words: str) -> None:
    """Exit code 2, before Spark is started."""
    done = run("spark", "pipeline", *[str(file) if word == "FILE" else word for word in arguments])
    assert done.exit_code == 2, done.stderr
    assert words in done.stderr
    assert "starting Spark" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "FILE", "--only", "copie"], "did you mean 'copies'?"),
        (["backfill", "FILE", "lates"], "did you mean 'latest'?"),
        (["backfill", "FILE", "latest", "--from", "yesterday"], "no bound of a range"),
        (["backfill", "FILE", "latest", "--from", "run:3", "--to", "2026-01-01T00:00:00Z"], "two kinds"),
        (["run", "FILE", "--option", "kering=x"], "did you mean keyring?"),
        (["run", "FILE", "--reports", "s3://a:secret@b/c"], "must not carry"),
    ],
)
def test_what_can_be_known_is_refused_before_spark_starts(
    run: Run, file: Path, arguments: list[str], words: str
) -> None:
    """Exit code 1, with what to do."""
    done = run("spark", "pipeline", *[str(file) if word == "FILE" else word for word in arguments], "--json")
    assert done.exit_code == 1, done.stderr
    error = json.loads(done.stderr.splitlines()[-1])
    assert words in error["message"] + error["hint"]
    assert "secret" not in done.stderr
    assert "starting Spark" not in done.stderr


def test_a_root_that_is_not_there_fails_the_tables_without_spark(run: Run, file: Path) -> None:
    """It may come: a service tries again."""
    done = run("spark", "pipeline", "run", file, "--root", "nowhere", "--no-reports", "--json")
    assert (done.exit_code, "starting Spark" in done.stderr) == (1, False)
    copies, latest = json.loads(done.stdout)["tables"]
    assert (copies["outcome"], copies["error_kind"], latest["outcome"]) == ("failed", "NotFound", "skipped")
    assert "nowhere" in copies["error"]
    text = run("spark", "pipeline", "run", file, "--root", "nowhere", "--no-reports")
    assert text.stdout.splitlines()[1].split()[:3] == ["copies", "failed", "-"]
    assert "hint: " in text.stderr


def test_both_ways_take_the_same_arguments() -> None:
    """What `holdfast spark pipeline` takes, `spark-submit FILE` takes, but for the file; so are exit codes."""
    context = click.Context(pipeline_command)
    commands = [pipeline_command.get_command(context, name) for name in pipeline_command.list_commands(context)]
    here = {
        name
        for command in commands
        if command
        for one in command.params
        if isinstance(one, click.Option)
        for name in one.opts
    }
    there = {name for action in command_line.parser("x")._actions for name in action.option_strings}
    assert here - {"--pipeline"} == there - {"-h", "--help"}
    for name in ("FINE", "REFUSED", "USAGE", "DAMAGED", "INTERRUPTED"):
        assert getattr(command_line, name) == getattr(exit_codes, name)


def test_without_pyspark_it_says_what_to_install(file: Path) -> None:
    """In a process that has not loaded it before."""
    hidden = "import sys; sys.modules['pyspark'] = None; from holdfast.cli import main; main()"
    command = [sys.executable, "-c", hidden, "spark", "pipeline", "status", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'holdfast-log[spark]'" in done.stderr


def own(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(file), *arguments], capture_output=True, text=True, check=False)


def test_a_file_is_its_own_program(file: Path) -> None:
    """As spark-submit runs it: the same answers, errors and exit codes."""
    done = own(file, "status", "--json")
    assert [one["name"] for one in objects(done.stdout)] == ["copies", "latest"], done.stderr
    assert own(file, "status").stdout.splitlines()[0].startswith("table ")
    wrong = own(file, "run", "--only", "copie", "--json")
    assert wrong.returncode == 1
    assert json.loads(wrong.stderr.splitlines()[-1])["error"] in ("NotFound", "Invalid")
    for arguments in (
        ["walk"],
        ["run", "--nothing"],
        ["backfill"],
        ["status", "--every", "1s"],
        ["run", "--every", "soon"],
    ):
        assert own(file, *arguments).returncode == 2, arguments
