from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import Settings
from holdfast.shipping.shipping_settings import PROFILES
from tests.cli.conftest import Run, objects

pytestmark = pytest.mark.disk

SECRET = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"


def shown(run: Run, *arguments: str, **env: str) -> dict[str, Any]:
    result = run("config", "show", "--json", *arguments, **env)
    assert (result.exit_code, result.stderr) == (0, "")
    (found,) = objects(result.stdout)
    return found


def origins(found: dict[str, Any]) -> dict[str, tuple[Any, str]]:
    return {setting["name"]: (setting["value"], setting["origin"]) for setting in found["settings"]}


def test_every_setting_is_shown_with_its_value(run: Run) -> None:
    """Each setting of each section is there once, with the value that is in force."""
    settings = Settings.load()
    expected = {
        f"{section}.{key}": getattr(getattr(settings, section), key)
        for section in settings.__struct_fields__
        for key in getattr(settings, section).__struct_fields__
    }
    found = shown(run)
    assert {name: value for name, (value, _) in origins(found).items()} == expected
    assert len(found["settings"]) == len(expected)


def test_each_setting_says_where_it_comes_from(run: Run) -> None:
    """The option wins over the environment, that over the file, that over the profile, that over the default."""
    Path("holdfast.toml").write_text(
        "[shipping]\nprofile = 'economy'\nbatch_bytes_max = '1MiB'\nevents_max = 7\n[store]\nurl = 'file:///a'\n"
    )
    found = shown(run, "--store", "file:///b", HOLDFAST_SHIPPING__EVENTS_MAX="8", HOLDFAST_STORE__URL="file:///c")
    known = origins(found)
    assert known["shipping.profile"] == ("economy", "file")
    assert known["shipping.batch_bytes_max"] == (2**20, "file")
    assert known["shipping.batch_timeout_ms"] == (PROFILES["economy"]["batch_timeout_ms"], "profile")
    assert known["shipping.events_max"] == (8, "environment")
    assert known["shipping.max_retry_attempts"] == (3, "default")
    assert known["store.url"] == ("file:///b", "option")
    assert known["segments.seal_on_close"] == (False, "environment")
    assert (found["file"], found["store"]) == (str(Path("holdfast.toml").absolute()), "file:///b")


def test_a_value_that_is_set_to_its_default_is_still_set(run: Run) -> None:
    """The origin tells what is written somewhere, not what differs."""
    assert origins(shown(run, HOLDFAST_SHIPPING__EVENTS_MAX="1024"))["shipping.events_max"] == (1024, "environment")


def test_the_file_that_is_named_is_the_file(run: Run) -> None:
    """HOLDFAST_CONFIG names another file; without any the file is null."""
    assert shown(run)["file"] is None
    Path("other.toml").write_text("[disk]\n")
    assert shown(run, HOLDFAST_CONFIG="other.toml")["file"] == str(Path("other.toml").absolute())


def test_shipping_has_its_price(run: Run) -> None:
    """The PUT rate and its monthly list price, of the settings in force and of each profile beside them."""
    found = shown(run, HOLDFAST_SHIPPING__BATCH_TIMEOUT_MS="100")
    assert found["cost"] == {
        "profile": "",
        "batch_timeout_ms": 100,
        "puts_per_second": 10,
        "puts_per_month": 25_920_000,
        "dollars_per_month": 129.6,
    }
    assert [(cost["profile"], cost["dollars_per_month"]) for cost in found["profiles"]] == [
        ("low-latency", 2592.0),
        ("balanced", 51.84),
        ("economy", 2.59),
    ]


def test_text_has_a_line_per_setting_and_per_profile(run: Run) -> None:
    """In text: the settings, the store, the cost, and the profiles for comparison."""
    text = run("config", "show", "--store", "s3://bucket/prefix").stdout
    assert ["store.url", "s3://bucket/prefix", "option"] in [line.split() for line in text.splitlines()]
    assert "about 200 PUTs per second while records come all the time: $2,592.00 a month" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == list(PROFILES)
    assert "store          none: nothing is shipped" in run("config", "show").stdout


def test_a_directory_costs_nothing(run: Run) -> None:
    """For a store on this machine the text says that the price is that of another."""
    assert "cost nothing here" in run("config", "show", "--store", "/srv/log").stdout
    off = run("config", "show", HOLDFAST_SHIPPING__COMMIT_BATCHES="false").stdout
    assert "no commit batches" in off


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_secret_is_shown(run: Run, form: list[str]) -> None:
    """Credentials in the environment are not settings: nothing of them is printed, only their references."""
    result = run(
        "config",
        "show",
        *form,
        AWS_ACCESS_KEY_ID="AKIAIOSFODNN7EXAMPLE",
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_SESSION_TOKEN=SECRET,
        MINE_SECRET_ACCESS_KEY=SECRET,
        KEYS=f"k1:{SECRET}",
        HOLDFAST_STORE__CREDENTIALS="env:MINE",
        HOLDFAST_CRYPTO__KEYRING="env:KEYS",
    )
    assert result.exit_code == 0
    assert "env:MINE" in result.stdout
    assert "env:KEYS" in result.stdout
    assert SECRET not in result.output
    assert "AKIA" not in result.output


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    "given",
    [
        {"HOLDFAST_CRYPTO__KEYRING": f"k1:{SECRET}"},
        {"HOLDFAST_STORE__CREDENTIALS": SECRET},
        {"HOLDFAST_STORE__CREDENTIALS": f"AKIAIOSFODNN7EXAMPLE:{SECRET}"},
        {"HOLDFAST_STORE__URL": f"s3://key:{SECRET}@bucket/prefix"},
        {"HOLDFAST_STORE__URL": f"s3://bucket/prefix?X-Amz-Signature={SECRET}"},
        {"HOLDFAST_STORE__ENDPOINT": f"https://key:{SECRET}@example.org"},
        {"HOLDFAST_STORE__SECRET_ACCESS_KEY": SECRET},
    ],
)
def test_a_secret_in_the_place_of_a_setting_is_refused_and_not_repeated(
    run: Run, given: dict[str, str], form: list[str]
) -> None:
    """Whatever was pasted into the wrong place does not come out again, not even with tracebacks on."""
    result = run("config", "show", *form, **given, HOLDFAST_DEBUG="1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert SECRET not in result.output
    assert "AKIA" not in result.output


def test_a_store_with_a_secret_is_wrong_usage(run: Run) -> None:
    """A URL with a password is refused as an option, too, and not repeated."""
    result = run("config", "show", "--store", f"s3://key:{SECRET}@bucket", "--json")
    assert (result.exit_code, json.loads(result.stderr.splitlines()[-1])["error"]) == (2, "Usage")
    assert SECRET not in result.output


@pytest.mark.parametrize("arguments", [[], ["set"], ["show", "more"]])
def test_only_show_is_known(run: Run, arguments: list[str]) -> None:
    """Anything else is wrong usage."""
    assert run("config", *arguments).exit_code == 2


def test_settings_that_are_wrong_are_reported(run: Run) -> None:
    """A setting that cannot be is refused with its name, not shown as if it were in force."""
    result = run("config", "show", HOLDFAST_SHIPPING__PROFILE="frugal")
    assert (result.exit_code, "shipping.profile must be one of" in result.stderr) == (1, True)
