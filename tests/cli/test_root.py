"""`read`, `topics` and `status` of a store: what the log itself says, without the log."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring, Settings
from tests.cli.conftest import Run, objects, segment_files

pytestmark = pytest.mark.disk

QUICK = Settings.from_mapping({"segments": {"seal_on_close": False}, "shipping": {"batch_timeout_ms": 1}})


@pytest.fixture
def root(sealed_log: Path, tmp_path: Path) -> Path:
    """The root that `sealed_log` was shipped to: segments, and a tail in commit batches; the log is elsewhere now."""
    with holdfast.open(sealed_log, store=tmp_path / "root", settings=QUICK) as log:
        log.ship(30)
        log.topic("orders").append(
            b"last", key=b"k", kind="t", headers={"h": b"v"}, durability="shipped", time=99 * 10**6
        )
    return tmp_path / "root"


SPANS = [
    [],
    ["--start", "5"],
    ["--start", "28", "--end", "33"],
    ["--start", "32"],
    ["--start", "-3"],
    ["--start", "-8", "--end", "-2"],
    ["--end", "4"],
    ["--start", "100"],
    ["--limit", "7"],
    ["--limit", "0"],
    ["--since", "5000000", "--until", "8000000"],
    ["--partition", "0", "--limit", "2"],
]


FORMS = [*((span, ["--json"]) for span in SPANS), ([], ["--raw"]), ([], [])]


@pytest.mark.parametrize(("span", "form"), FORMS)
def test_a_store_gives_what_the_log_gives(
    run: Run, sealed_log: Path, root: Path, span: list[str], form: list[str]
) -> None:
    """The same records, in the same shape and order, whichever is asked; by URL and by directory."""
    expected = run("read", sealed_log, "orders", *span, *form)
    for place in (root, root.as_uri()):
        result = run("read", place, "orders", *span, *form)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == expected.stdout


@pytest.mark.parametrize("options", [[], ["--json"], ["--json", "--columns", "s"]])
def test_typed_rows_of_a_store(run: Run, sealed_log: Path, root: Path, options: list[str]) -> None:
    """Rows come as the log gives them."""
    expected = run("read", sealed_log, "rows", *options)
    assert run("read", root, "rows", *options).stdout == expected.stdout != ""


def test_arrow_of_a_store(run: Run, root: Path) -> None:
    """One Arrow stream, with the columns that `holdfast.read` gives."""
    import pyarrow as pa

    table = pa.ipc.open_stream(run("read", root, "rows", "--format", "arrow").stdout_bytes).read_all()
    assert (table.num_rows, table.column("a").to_pylist()) == (3, [0, 1, 2])


def test_raw_arrow_of_a_store_has_the_columns_of_the_log(run: Run, sealed_log: Path, root: Path) -> None:
    """A record has one vocabulary wherever it is read; a store's rows also say their topic."""
    import pyarrow as pa

    own, there = (
        pa.ipc.open_stream(run("read", place, "orders", "--format", "arrow").stdout_bytes).read_all()
        for place in (sealed_log, root)
    )
    assert there.column_names == ["topic", *own.column_names]
    assert there.drop_columns(["topic"]).to_pylist() == own.to_pylist()


def test_topics_of_a_store(run: Run, sealed_log: Path, root: Path) -> None:
    """Names, kinds, marks, segments and schemas are those of the log."""
    own = {line["topic"]: line for line in objects(run("topics", sealed_log, "--json").stdout)}
    for line in objects(run("topics", root, "--json").stdout):
        there = own[line["topic"]]
        assert (line["kind"], line["records"], line["segments"], line["segment_bytes"]) == (
            there["kind"],
            there["records"],
            there["segments"],
            there["segment_bytes"],
        )
        for here, part in zip(line["partitions"], there["partitions"], strict=True):
            assert {name: part[name] for name in ("partition", "first", "shipped", "settled")} == {
                name: here[name] for name in ("partition", "first", "shipped", "settled")
            }
        assert [schema["columns"] for schema in line["schemas"]] == [schema["columns"] for schema in there["schemas"]]
    assert {line["topic"] for line in objects(run("topics", root, "--json").stdout)} == set(own)
    assert "orders" in run("topics", root).stdout


def test_status_of_a_store(run: Run, sealed_log: Path, root: Path) -> None:
    """Whose it is, who claimed it, how far it is; and that nothing was proved by a key where there is none."""
    (own,) = objects(run("status", sealed_log, "--json").stdout)
    (found,) = objects(run("status", root.as_uri(), "--json").stdout)
    assert (found["log_id"], found["records"], found["segments"]) == (own["log_id"], own["records"], own["segments"])
    assert (found["encrypted"], found["verified"], found["keys"], found["format"]) == (False, False, [], 1)
    assert (found["claim"]["epoch"], found["claim"]["purpose"]) == (1, "open")
    text = run("status", root).stdout
    assert f"log        {own['log_id']}" in text
    assert "claimed    epoch 1 by process" in text


def test_a_log_that_ships_nowhere_is_its_own_root(run: Run, sealed_log: Path) -> None:
    """Its directory, named by URL, gives what is sealed."""
    assert len(run("read", sealed_log.as_uri(), "orders").stdout.splitlines()) == 30
    assert objects(run("status", sealed_log.as_uri(), "--json").stdout)[0]["claim"] is None


def test_an_encrypted_store(run: Run, secret_log: Path, tmp_path: Path, keyring: Keyring) -> None:
    """With its keyring everything is proved and read; without one that is said, with how keys are given."""
    with holdfast.open(secret_log, store=tmp_path / "root", keyring=keyring, settings=QUICK) as log:
        log.seal()
        log.ship(30)
        log_id = log.id
    keys = ["--keyring", "file:keys"]
    root = tmp_path / "root"
    assert run("read", root, "orders", "--raw", *keys, "--log-id", log_id).stdout == "the-secret-payload\n"
    refused = run("read", root, "orders")
    assert (refused.exit_code, "--keyring env:NAME" in refused.stderr, refused.stdout) == (1, True, "")
    assert "secret" not in refused.stderr.replace(str(tmp_path), "")
    proved = objects(run("status", root, "--json", *keys).stdout)[0]
    assert (proved["encrypted"], proved["verified"], proved["keys"]) == (True, True, [keyring.current])
    result = run("status", root, "--json")
    assert objects(result.stdout)[0]["verified"] is False
    assert "note: the log is encrypted and there is no key" in result.stderr
    other = run("read", root, "orders", *keys, "--log-id", "0" * 32)
    assert (other.exit_code, "belongs to another log" in other.stderr) == (1, True)


@pytest.mark.parametrize(("damage", "said"), [("gone", "missing"), ("cut", "size mismatch")])
def test_nothing_is_verified_over_a_file_that_is_missing_or_cut(
    run: Run, secret_log: Path, tmp_path: Path, keyring: Keyring, damage: str, said: str
) -> None:
    store = tmp_path / "root"
    keyring.save(file := tmp_path / "keys")
    with holdfast.open(secret_log, store=store, keyring=keyring) as log:
        log.seal()
        log.ship(30)
    lost = next(store.rglob("segments/*.parquet"))
    lost.write_bytes(lost.read_bytes()[:100])
    if damage == "gone":
        lost.unlink()
    result = run("status", store, "--keyring", f"file:{file}", "--json")
    (found,) = objects(result.stdout)
    assert (result.exit_code, found["verified"]) == (3, False)
    assert [said in one["message"] and lost.name in one["message"] for one in found["problems"]] == [True]


def test_what_a_store_cannot_do_is_wrong_usage(run: Run, root: Path, log: Path) -> None:
    """Options that need the log are refused, and so is a log's id where there is no choice."""
    for option in (["--follow"], ["--reverse"], ["--position", "-"], ["--bytes", "1"]):
        assert run("read", root, "orders", *option).exit_code == 2
    assert run("read", log, "orders", "--log-id", "0" * 32).exit_code == 2
    assert run("read", root, "orders", "--columns", "a").exit_code == 1
    assert run("read", root, "orders", "--partition", "7").exit_code == 1
    assert run("read", root, "rows", "--raw").exit_code == 1


def test_a_store_that_is_not_there(run: Run, tmp_path: Path) -> None:
    """Nothing there, a wrong scheme, a secret in the address: refused, and the secret is not repeated."""
    for verb in (["read", "URL", "orders"], ["topics", "URL"], ["status", "URL"]):
        for url, code in (((tmp_path / "nowhere").as_uri(), 1), ("ftp://host/x", 2), ("s3://user:hunter2@bucket/x", 2)):
            result = run(*[url if word == "URL" else word for word in verb])
            assert (result.exit_code, result.stdout) == (code, "")
            assert "hunter2" not in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_mistyped_topic_of_a_store(run: Run, root: Path) -> None:
    """The one that was meant is named, here and in the library."""
    assert "did you mean 'orders'?" in run("read", root, "ordrs").stderr
    with pytest.raises(holdfast.NotFound, match="did you mean 'orders'"):
        holdfast.read(str(root), "ordrs")


def test_damage_on_a_store(run: Run, root: Path) -> None:
    """A segment that was changed ends the output with exit code 3; so does a manifest that was."""
    copy = Path(shutil.copytree(root, root.parent / "copy"))
    (segment, *_) = sorted((copy / "topics" / "orders" / "0" / "segments").glob("*.parquet"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.chmod(0o600)
    segment.write_bytes(data)
    result = run("read", copy, "orders", "--json")
    assert (result.exit_code, objects(result.stderr)[0]["error"]) == (3, "Corrupt")
    (document, *_) = sorted((copy / "topics" / "orders" / "0" / "_manifest").iterdir())
    document.chmod(0o600)
    document.write_bytes(b"{}")
    for verb in ("status", "topics"):
        assert run(verb, copy).exit_code == 3
    assert segment_files(root.parent / "sealed")  # what was damaged is the copy's


@pytest.mark.parametrize("place", ["root", "sealed_log"])
def test_a_newest_manifest_object_that_was_lost(run: Run, request: pytest.FixtureRequest, place: str) -> None:
    """A reader learns of it, of a store and of the root in a log's own directory."""
    found: Path = request.getfixturevalue(place)
    max(found.glob("**/topics/orders/0/_manifest/*.json")).unlink()
    for verb in (["status"], ["topics"], ["read", "orders"]):
        result = run(verb[0], found.as_uri(), *verb[1:])
        assert (result.exit_code, "settled=" in result.stderr) == (3, True)


@pytest.mark.parametrize("verb", ["append", "tail", "seal", "ship", "reconcile", "rebuild"])
def test_verbs_of_a_directory_take_no_url(run: Run, tmp_path: Path, verb: str) -> None:
    """No directory called `s3:` comes into being."""
    result = run(verb, "s3://u:hunter2@bucket/prefix", *(["orders"] if verb in {"append", "tail"} else []), stdin=b"x")
    assert (result.exit_code, "not a store's URL" in result.stderr, "hunter2" in result.stderr) == (2, True, False)
    assert not list(tmp_path.iterdir())


def test_a_topic_with_a_codec_shows_its_values_here_and_at_its_store(run: Run, tmp_path: Path) -> None:
    """Lines are checked as they are appended; the codec travels with the topic, so that a store shows values, too."""
    run("append", "data", "values", '{"id": 1}', "--codec", "msgpack")
    run("append", "data", "texts", "--lines", "--codec", "text", stdin="ä\n".encode())
    refused = run("append", "data", "values", "{")
    assert (refused.exit_code, "not JSON" in refused.stderr) == (1, True)
    with holdfast.open("data", store=tmp_path / "root", settings=QUICK) as log:
        log.seal()
        log.ship(30)
    for place in ("data", (tmp_path / "root").as_uri()):
        (line,) = map(json.loads, run("read", place, "values", "--json").stdout.splitlines())
        assert (line["value"], line["payload_encoding"]) == ({"id": 1}, "base64")
        assert run("read", place, "values").stdout.endswith('  {"id":1}\n')
        assert json.loads(run("read", place, "texts", "--json").stdout)["value"] == "ä"
        listed = map(json.loads, run("topics", place, "--json").stdout.splitlines())
        assert {line["topic"]: line["kind"] for line in listed} == {"texts": "text", "values": "msgpack"}
