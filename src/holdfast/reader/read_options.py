"""The options of a read: Kafka's names where they exist; all that are wrong are refused together.

Spark hands options over as text; Python callers fill in `ReadOptions` themselves. Nothing here holds a secret: keys and
credentials are named by reference, and what does not look like a reference is refused without being repeated. Unknown
options are refused too: a mistyped `keyring` must not be ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from os import environ
from typing import Any, Literal, get_args

import msgspec

from holdfast.errors import Invalid
from holdfast.model.topic_name import check_name
from holdfast.reader.offsets import ReadMarks, parse_marks, parse_offsets
from holdfast.store.store_settings import StoreSettings
from holdfast.suggestions import meant

Verify = Literal["off", "hash", "full"]
SchemaMode = Literal["latest", "known", "strict"]
Encrypted = Literal["open", "sealed"]
Emit = Literal["rows", "segments", "manifest"]

_SINCE_S, _BEFORE_S = 631_152_000, 4_102_444_800
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KEYRING = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:.{1,4096})\Z")
_LOG_ID = re.compile(r"[0-9a-f]{32}\Z")
_READER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
SPLIT_BYTES = 128 * 2**20


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One read, batch or stream."""

    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    """A regular expression that must match a topic's whole name; instead of `topics`."""
    columns: tuple[str, ...] | None = None
    """Which columns; None for all, an empty tuple to count rows without opening a file."""
    kafka_names: bool = False
    """Whether raw topics have the columns of Kafka's source, as Spark's users expect."""
    starting_offsets: ReadMarks | Literal["earliest", "latest"] = "earliest"
    ending_offsets: ReadMarks | Literal["latest"] = "latest"
    since_us: int | None = None
    """Only records of this time or later."""
    before_us: int | None = None
    """Only records before this time."""
    as_of: ReadMarks | None = None
    """The marks of an earlier read of the same log: this one sees exactly what that one saw."""
    include_tail: bool = False
    verify: Verify = "hash"
    schema_mode: SchemaMode = "latest"
    encrypted: Encrypted = "open"
    keyring: str = ""
    log_id: str = ""
    """The log that must be at the root; another one is refused."""
    """Read a root of an encrypted log that was written before objects were signed."""
    fail_on_data_loss: bool = True
    min_partitions: int = 0
    split_bytes: int = SPLIT_BYTES
    max_offsets: int = 0
    max_bytes: int = 0
    max_segments: int = 0
    reader: str = ""
    """The name of a stream's lease, which says what it still needs, so that retention waits for it."""
    lease_seconds: int = 3600
    emit: Emit = "rows"
    native: bool = True
    """Whether Spark may read segments by itself, where nothing has to be opened."""
    store: StoreSettings = StoreSettings()

    def __post_init__(self) -> None:
        problems = [problem for problem in _problems(self) if problem]
        if problems:
            raise Invalid("; ".join(problems), hint="correct these options; all problems found are listed")

    @property
    def marks(self) -> tuple[ReadMarks, ...]:
        """Where it is to begin and to end, as far as that is given."""
        given = (self.as_of, self.starting_offsets, self.ending_offsets)
        return tuple(one for one in given if isinstance(one, ReadMarks))

    def matches(self, topic: str) -> bool:
        """Whether a topic is asked for."""
        return topic in self.topics if self.topics else re.fullmatch(self.topic_pattern, topic) is not None


def _problems(options: ReadOptions) -> list[str | None]:
    is_limited = options.as_of is not None and options.ending_offsets != "latest"
    return [
        None if bool(options.topics) != bool(options.topic_pattern) else "give either topic or topicPattern",
        _pattern_problem(options.topic_pattern),
        "asOf and endingOffsets both say where to end: give one of them" if is_limited else None,
        *_tail_problems(options),
        *_choice_problems(options),
        *reference_problems(options.keyring, options.log_id),
        None if not options.reader or _READER.match(options.reader) else "reader must be a plain name",
        None if options.min_partitions >= 0 else "minPartitions must not be negative",
        None if options.split_bytes > 0 else "splitBytes must be above zero",
        None if options.lease_seconds > 0 else "leaseSeconds must be above zero",
        None
        if min(options.max_offsets, options.max_bytes, options.max_segments) >= 0
        else "limits per trigger must be above zero",
        # Blocks are returned by whole segments: a segment that is cut would come with both of its batches.
        "maxOffsetsPerTrigger cuts segments, which encrypted=sealed cannot: limit bytes or segments"
        if options.encrypted == "sealed" and options.max_offsets
        else None,
    ]


def reference_problems(keyring: str, log_id: str) -> list[str | None]:
    """What is wrong with how keys and the log are named."""
    return [
        None
        if not keyring or _KEYRING.match(keyring)
        else "keyring must be env:NAME or file:PATH; a key does not belong here",
        None if not log_id or _LOG_ID.match(log_id) else "logId must be 32 hex digits",
    ]


def check_log_id(log_id: str) -> str:
    """A log's id, or none."""
    if not isinstance(log_id, str) or (log_id and not _LOG_ID.match(log_id)):
        raise Invalid("a log's id is 32 hex digits", hint="log.id and `holdfast status` say it")
    return log_id


def _choice_problems(options: ReadOptions) -> list[str | None]:
    """Python callers may write anything; an unknown word must not pass for a default."""
    choices = {"verify": Verify, "schema_mode": SchemaMode, "encrypted": Encrypted, "emit": Emit}
    return [
        None if getattr(options, name) in get_args(kind) else f"{name} must be one of: {', '.join(get_args(kind))}"
        for name, kind in choices.items()
    ]


def _tail_problems(options: ReadOptions) -> list[str | None]:
    if not options.include_tail:
        return []
    return [
        "asOf reads what was settled; includeTail goes beyond it" if options.as_of is not None else None,
        "encrypted=sealed reads blocks of segments; includeTail has none" if options.encrypted == "sealed" else None,
        f"emit={options.emit} tells of segments; includeTail has none" if options.emit != "rows" else None,
    ]


def _pattern_problem(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except re.error:
        return "topicPattern is not a regular expression"
    return None


# -- options as text --------------------------------------------------------------------------------------


def _names(value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


def _topics(value: str) -> tuple[str, ...]:
    return tuple(check_name(name) for name in _names(value))


def _flag(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.lower() == "true"


def _positive(value: str) -> int:
    if int(value) < 1:
        raise ValueError("must be above zero")
    return int(value)


def _choice(*words: str) -> Callable[[str], str]:
    def chosen(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"must be one of: {', '.join(words)}")
        return value.lower()

    return chosen


def _offsets(*words: str) -> Callable[[str], Any]:
    def found(value: str) -> Any:
        if value.strip().lower() in words:
            return value.strip().lower()
        return parse_offsets(value)

    return found


def parse_time(value: str) -> int:
    """Milliseconds since 1970, as Kafka has them, or an ISO 8601 time with a zone; in microseconds.

    >>> parse_time("1700000000000") == parse_time("2023-11-14T22:13:20Z")
    True
    """
    text = value.strip()
    if text.lstrip("-").isdigit():
        return _milliseconds(int(text)) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be milliseconds since 1970, or a time such as 2026-11-15T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("must name its time zone, such as Z or +01:00")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _milliseconds(moment: int) -> int:
    """Refuse a number that is clearly in another unit, because in that unit it is a day between 1990 and 2100."""
    if _SINCE_S <= moment < _BEFORE_S:
        raise ValueError(f"must be milliseconds since 1970; this can only be seconds: give {moment * 1000}")
    if _SINCE_S * 10**6 <= moment < _BEFORE_S * 10**6:
        raise ValueError(f"must be milliseconds since 1970; this can only be microseconds: give {moment // 1000}")
    return moment


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "topic": ("topics", _topics),
    "topicPattern": ("topic_pattern", str),
    "columns": ("columns", _names),
    "startingOffsets": ("starting_offsets", _offsets("earliest", "latest")),
    "endingOffsets": ("ending_offsets", _offsets("latest")),
    "startingTimestamp": ("since_us", parse_time),
    "endingTimestamp": ("before_us", parse_time),
    "asOf": ("as_of", parse_marks),
    "includeTail": ("include_tail", _flag),
    "verify": ("verify", _choice("off", "hash", "full")),
    "schemaMode": ("schema_mode", _choice("latest", "known", "strict")),
    "encrypted": ("encrypted", _choice("open", "sealed")),
    "keyring": ("keyring", str),
    "logId": ("log_id", str),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "minPartitions": ("min_partitions", _positive),
    "splitBytes": ("split_bytes", _positive),
    "maxOffsetsPerTrigger": ("max_offsets", _positive),
    "maxBytesPerTrigger": ("max_bytes", _positive),
    "maxSegmentsPerTrigger": ("max_segments", _positive),
    "reader": ("reader", str),
    "leaseSeconds": ("lease_seconds", _positive),
    "emit": ("emit", _choice("rows", "segments", "manifest")),
    "native": ("native", _flag),
}
STORE_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "endpoint": ("endpoint", str),
    "region": ("region", str),
    "pathStyle": ("path_style", _choice("auto", "yes", "no")),
    "credentials": ("credentials", str),
    "caFile": ("ca_file", str),
    "allowHttp": ("allow_http", _flag),
    "retries": ("retries", int),
    "timeoutMs": ("timeout_ms", float),
    "readBytesMax": ("read_bytes_max", _positive),
    "prefetchRequests": ("prefetch_requests", int),
    "prefetchBytes": ("prefetch_bytes", _positive),
}
"""How a store is reached, for reads and writes."""
PLACES = ("path", "root")
"""Where the root is; `root` for those who cannot use `path`, such as tables on S3."""

OPTION_NAMES = (*PLACES, *_PARSERS, *STORE_PARSERS)
"""Every option, as users write it; capitals do not matter."""

_BY_LOWER = {name.lower(): name for name in OPTION_NAMES}
_OF_TABLE = "option."


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the options of a table in Spark's catalog, which lives longer than one read."""
    return "provider" in {name.lower() for name in options}


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """What the user gave, by lower-case name: a catalog mixes a table's properties with its options."""
    given = {name.lower(): str(value) for name, value in options.items()}
    if "provider" not in given:
        return given
    own = {name.removeprefix(_OF_TABLE): value for name, value in given.items() if name.startswith(_OF_TABLE)}
    return {**({"path": given["path"]} if "path" in given else {}), **own}


def parse_options(options: Mapping[str, str]) -> tuple[str, ReadOptions]:
    """The root's place and what Spark's user asks of it; Invalid with everything that is wrong."""
    given = own_options(options)
    problems = unknown_options(given, _BY_LOWER)
    values, wrong = parsed_texts(given, _PARSERS)
    store, wrong_store = parsed_texts(given, STORE_PARSERS)
    problems += [*wrong, *wrong_store]
    values["kafka_names"] = True
    store = {**store_environment(environ), **store}
    place = given.get("root") or given.get("path") or ""
    if not place:
        problems.append("there is no root: give it to load(…)")
    made: dict[str, Any] = {}
    for kind, given_values in ((StoreSettings, store), (ReadOptions, values)):
        try:
            made[kind.__name__] = kind(**given_values)
        except Invalid as error:
            problems.append(error.message)
    if problems:
        raise Invalid("; ".join(problems), hint="correct these options; all problems found are listed")
    return place, msgspec.structs.replace(made["ReadOptions"], store=made["StoreSettings"])


def parsed_texts(
    given: Mapping[str, str], parsers: Mapping[str, tuple[str, Callable[[str], Any]]]
) -> tuple[dict[str, Any], list[str]]:
    """The values of options by field, and what is wrong with the others."""
    values: dict[str, Any] = {}
    problems = []
    for name, (field, parse) in parsers.items():
        text = given.get(name.lower())
        if text is None:
            continue
        try:
            values[field] = parse(text)
        except Invalid as error:
            problems.append(f"{name}: {error.message}")
        except ValueError as error:
            problems.append(f"{name} {own_words(error)}")
    return values, problems


def own_words(error: ValueError) -> str:
    """Only our own words: text in place of a number may be a secret in the wrong place."""
    return str(error) if str(error).startswith("must") else "must be a number"


def store_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """How a store is reached, as far as the environment says it, under the names that writers use."""
    known = [f"HOLDFAST_STORE__{field.upper()}" for field in StoreSettings.__struct_fields__]
    for name in environment:
        if name.startswith("HOLDFAST_STORE_") and name not in known:
            raise Invalid(f"there is no setting {name}{meant(name, known)}", hint="correct it, or unset it")
    found: dict[str, Any] = {}
    for field, parse in STORE_PARSERS.values():
        text = environment.get(f"HOLDFAST_STORE__{field.upper()}")
        try:
            found |= {} if text is None else {field: parse(text)}
        except ValueError as error:
            raise Invalid(
                f"HOLDFAST_STORE__{field.upper()} {own_words(error)}", hint="correct it, or unset it"
            ) from None
    return found


def unknown_options(given: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """A problem for each name that is not among those that are known, which are by their names in lower case."""
    problems = []
    for name in given:
        if name in known or name.startswith("__"):  # two underscores: Spark's own
            continue
        near = get_close_matches(name, known, 1)
        problems.append(f"there is no option {name}" + (f" (did you mean {known[near[0]]}?)" if near else ""))
    return problems
