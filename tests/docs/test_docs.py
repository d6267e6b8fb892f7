"""The documents tell the truth: their examples run, and nothing public is missing from them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast import Settings, errors
from holdfast.channels.keeping.snapshot import NoteKind
from holdfast.model.schema import declare
from holdfast.reader.read_columns import ENCRYPTED, KAFKA, RAW, columns_of
from holdfast.reader.read_options import OPTION_NAMES, parse_options
from holdfast.reconcile.classify import Kind
from tests.store.servers import ACCESS_KEY, REGION, SECRET_KEY, weed

pytestmark = pytest.mark.disk

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE, SPARK_PATIENCE = 240, 400
"""Seconds for the examples of a page; for those of a page that starts Spark."""
FIRST = [ROOT / "README.md", ROOT / "docs/quickstart.md"]
"""What a newcomer tries first, in this order, in the same folder, and again."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="session")
def s3_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A real S3 server, and the environment in which `s3://logs/…` is a bucket there."""
    with weed(tmp_path_factory.mktemp("weed")) as server:
        yield {
            **os.environ,
            "HOLDFAST_STORE__ENDPOINT": server.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }


def code_of(page: Path) -> str:
    """All Python of a page, in order."""
    return "\n".join(BLOCK.findall(page.read_text()))


def example(page: Path):
    """A page whose blocks are run; one that starts Spark takes longer, and runs with Spark's own tests."""
    starts_spark = "pyspark" in code_of(page)
    marks = [pytest.mark.spark, pytest.mark.timeout(SPARK_PATIENCE + 20)] if starts_spark else []
    return pytest.param(page, marks=marks, id=name_of(page))


@pytest.mark.parametrize("page", [example(page) for page in PAGES if page not in FIRST and code_of(page)])
def test_examples_run(page, tmp_path, request):
    """A page's Python blocks run, in order, in an empty directory, without a warning."""
    blocks = BLOCK.findall(page.read_text())
    tests = [block for block in blocks if block.startswith("def test_")]
    script = "\n".join(block for block in blocks if block not in tests)
    env = request.getfixturevalue("s3_environment") if "s3://" in script else None
    run_script(script, tmp_path, SPARK_PATIENCE if "pyspark" in script else PATIENCE, env)
    if tests:
        (tmp_path / "test_example.py").write_text("\n".join(tests))
        run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py"]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.core
@pytest.mark.spark
@pytest.mark.timeout(2 * SPARK_PATIENCE)
def test_a_newcomer_runs_the_readme_then_the_quickstart_and_both_again(tmp_path, some):
    """Every block of both runs, one after the other in one folder, twice; nothing is said but what they print.

    In the gate one of them again: each starts a JVM.
    """
    for page in [*FIRST, *some(FIRST, 1)]:
        said = run_script(without_what_is_not_installed() + code_of(page), tmp_path, SPARK_PATIENCE)
        assert "holdfast: warning" not in said


def without_what_is_not_installed() -> str:
    """Python that takes away what the README's line of installing does not bring: a newcomer has no Polars, say."""
    extras = re.findall(r"pip install '\.\[([\w,]+)\]'", FIRST[0].read_text())[0].split(",")
    installed, left = {"holdfast-log"}, [("holdfast-log", ("", *extras))]
    while left:
        name, wanted = left.pop()
        for needed in map(Requirement, requires(name) or ()):
            needs = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in wanted)
            if needs and (found := canonicalize_name(needed.name)) not in installed:
                installed.add(found)
                left.append((found, ("", *needed.extras)))
    missing = [module for module, names in packages_distributions().items()
               if installed.isdisjoint(map(canonicalize_name, names))]  # fmt: skip
    assert "polars" in missing
    assert "pandas" not in missing
    return f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"


def run_script(script: str, folder: Path, patience: float, env: dict[str, str] | None = None) -> str:
    """Run it there, without a warning of Python's; what it says on stderr."""
    (folder / "example.py").write_text(script)
    run = [sys.executable, "-W", "error", "example.py"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=patience, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_settings_in_the_documents_are_settings():
    """Each TOML block is a settings file that loads."""
    blocks = [(page, block) for page in PAGES for block in TOML.findall(page.read_text())]
    assert len(blocks) >= 5
    for page, block in blocks:
        assert Settings.from_mapping(tomllib.loads(block)), name_of(page)


def test_the_quickstarts_command_line_runs(tmp_path):
    """The `holdfast` lines of the quickstart work as they stand there."""
    lines = [line for block in SHELL.findall(FIRST[1].read_text()) for line in block.splitlines()]
    commands = [line.partition("#")[0] for line in lines if line.startswith("holdfast ")]
    assert len(commands) >= 7
    program = shutil.which("holdfast", path=str(Path(sys.executable).parent))
    assert program
    for command in commands:
        done = subprocess.run(
            command.replace("holdfast", program, 1),
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, command + done.stderr


def test_the_readme_is_read_in_a_minute():
    """At most 700 words and 120 lines, code within 60 words, and each part in its place."""
    text = FIRST[0].read_text()
    assert len(text.split()) <= 700
    assert len(text.splitlines()) <= 120
    assert len(text.partition("```python")[0].split()) <= 60
    order = [
        "# holdfast", "pip install", "images/pipe.svg", "import holdfast", "images/wedge.svg",
        "import pyspark_holdfast", "## And", "## What survives what", "## What it is not", "script/demo", "## More",
    ]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_the_labels_of_the_chart_fit():
    """Also in the widest font that a browser may take: nothing is cut at the edge of the picture."""
    picture = (ROOT / "docs/images/wedge.svg").read_text()
    names = re.findall(r'class="name" x="(\d+)"[^>]*>([^<]+)', picture)
    rates = re.findall(r'class="rate" x="([\d.]+)"[^>]*>([^<]+)', picture)
    assert len(names) == len(rates) == 3
    wide = 9.5  # pixels of a letter in DejaVu Sans Bold of 14 pixels
    assert all(len(name) * wide < int(end) for end, name in names)
    assert all(float(start) + len(rate) * wide < 720 for start, rate in rates)


def test_every_feature_of_the_readme_is_linked_to_its_proof():
    """Each line leads to a test or to the page of what was measured, beside its how-to."""
    part = FIRST[0].read_text().partition("\n## And\n")[2].partition("\n## ")[0]
    features = re.findall(r"^\* .+$", part, re.MULTILINE)
    assert len(features) == 4
    for line in features:
        assert re.search(r"\]\((tests/|bench/|docs/operations\.md#speed)", line), line


def test_every_link_leads_somewhere():
    """Relative links in the documents point to files that exist."""
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{name_of(page)}: {target}"


def headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in re.findall("^#+ (.+)$", text, re.MULTILINE)
    }


def test_every_link_to_a_heading_finds_it():
    """What stands behind the # of a link is a heading of that page."""
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([^)#:]*\.md)?#([^)]+)\)", page.read_text()):
            assert heading in headings(page.parent / target if target else page), f"{name_of(page)}: {target}#{heading}"


def test_every_kind_of_finding_says_what_to_do():
    """Each kind of finding has its row."""
    page = (ROOT / "docs/howto/reconcile.md").read_text()
    rows = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    for kind in get_args(Kind):
        assert f"`{kind}`" in rows, kind


def test_every_alarm_of_shipping_is_in_the_runbook():
    """Each field of the shipping statistics that calls for somebody has its row in the operations page."""
    page = (ROOT / "docs/operations.md").read_text()
    for field in ("alarm", "ended", "lag_seconds", "lag_records", "unsettled_segments", "retries", "pool"):
        assert re.search(rf"^\| .*`{field}\b", page, re.MULTILINE), field


def test_every_promise_names_a_test_that_exists():
    """The files named in the guarantees are there."""
    named = re.findall(r"`((?:\w+/)+test_\w+\.py)`", (ROOT / "docs/guarantees.md").read_text())
    assert len(named) > 30
    for file in set(named):
        assert (ROOT / "tests" / file).exists(), file


# -- channels ----------------------------------------------------------------------------------------------


def test_every_kind_of_record_of_the_topic_is_documented():
    """Each kind is in the how-to and in the format, and so is each header."""
    headers = re.findall(
        r'headers\["(\w+)"\] = |"(\w+)": (?:raw|participant|b")',
        (ROOT / "src/holdfast/channels/keeping/channel_records.py").read_text(),
    )
    names = {one or other for one, other in headers}
    assert {"participant_id", "message_id", "missing"} <= names
    for page in (ROOT / "docs/howto/channels.md", ROOT / "docs/formats/0007-channels.md"):
        text = page.read_text()
        for name in [*get_args(NoteKind), *names]:
            assert f"`{name}`" in text, f"{name_of(page)}: {name}"


def test_every_alarm_of_channels_is_in_the_runbook():
    """Each sign that somebody should look at a channel has its row in the operations page."""
    page = (ROOT / "docs/operations.md").read_text()
    for field in ("persistence.ok", "persistence.pending", "refused_total", "incoming", "outgoing"):
        assert re.search(rf"^\| .*`[^`]*\b{field}`", page, re.MULTILINE), field


# -- Spark -------------------------------------------------------------------------------------------------

SPARK_PAGE = ROOT / "docs/reference/spark.md"


def spark_section(title: str) -> str:
    """The text under one heading of the Spark reference."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", SPARK_PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def option_rows() -> dict[str, list[str]]:
    """The cells behind each option's name."""
    rows = [line.strip("| ").split(" | ") for line in spark_section("Options").splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def test_every_option_of_the_format_is_documented():
    """Each option has one row, and no row is of an option that does not exist."""
    assert sorted(option_rows()) == sorted(OPTION_NAMES)
    assert all(cells[1] in ("both", "batch", "stream") for cells in option_rows().values())


def test_the_defaults_of_options_are_those_of_the_page():
    """Giving an option the default that the page shows changes nothing."""
    plain = {"path": "data", "topic": "t"}
    shown = {name: cells[0].strip("`") for name, cells in option_rows().items() if cells[0].startswith("`")}
    assert len(shown) > 10
    for name, default in shown.items():
        assert parse_options({**plain, name: default}) == parse_options(plain), name


def test_what_is_for_batch_reads_only_is_refused_in_streams():
    """An option of which the page says so is not passed over in a stream."""
    from pyspark_holdfast.source import HoldfastSource
    from pyspark_holdfast.types import spark_schema

    offsets, marks = '{"t":{"0":1}}', f'{{"{"0f" * 16}":{{"t":{{"0":[0,1]}}}}}}'
    values = {"includeTail": "true", "endingTimestamp": "0", "endingOffsets": offsets, "asOf": marks}
    assert set(values) == {name for name, cells in option_rows().items() if cells[1] == "batch"}
    for name, value in values.items():
        with pytest.raises(errors.Invalid):
            HoldfastSource({"path": "data", "topic": "t", name: value}).streamReader(spark_schema(KAFKA))


def test_every_setting_of_spark_is_documented():
    """Each setting that `configure` sets has its row, with its value where that is a word."""
    from pyspark_holdfast.spark_session import SETTINGS

    for name, value in SETTINGS.items():
        row = re.search(rf"^\| `{re.escape(name)}` \| (.+?) \|", spark_section("Settings"), re.MULTILINE)
        assert row, name
        assert value.rpartition(".")[0] or row[1] == f"`{value}`", name


def test_every_column_of_a_read_is_documented():
    """The columns of raw topics are named where `holdfast.read` is described."""
    page = (ROOT / "docs/reference/api.md").read_text()
    assert ", ".join(f"`{column.name}`" for column in RAW) in page


def test_every_column_is_documented():
    """Each column of raw and typed topics, of encrypted blocks and of segments as rows is under its heading."""
    from pyspark_holdfast.emitted_rows import SEGMENT_ROWS

    typed = columns_of(declare(pa.schema([("price", pa.float64())])))
    names = {
        "Raw topics": [column.name for column in KAFKA],
        "Typed topics": [column.name for column in typed if column.name != "price"],
        "Encrypted blocks": [column.name for column in ENCRYPTED],
        "Segments as rows": SEGMENT_ROWS.fieldNames(),
    }
    for title, columns in names.items():
        part = spark_section("Columns").partition(f"### {title}\n")[2].partition("\n### ")[0]
        cells = " ".join(line.split("|")[1] for line in part.splitlines() if line.startswith("| "))
        assert columns
        for name in columns:
            assert f"`{name}`" in cells, f"{title}: {name}"


def test_every_metric_is_documented():
    """Each series that the listener exposes is in the reference and in the operations page."""
    from pyspark_holdfast.lag import exposition

    names = re.findall(r"^# TYPE (\w+) gauge", exposition({}), re.MULTILINE)
    assert len(names) == 3
    for name in names:
        assert f"`{name}`" in spark_section("Metrics")
        assert f"`{name}`" in (ROOT / "docs/operations.md").read_text()
