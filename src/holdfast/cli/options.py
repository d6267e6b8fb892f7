"""What several verbs take, and how they open a log with it.

Keys come by reference only, on the command line (`--keyring env:NAME` or `file:PATH`) or as the setting
`crypto.keyring`; a key itself is never an argument, for arguments are seen by everybody on the machine.

A verb that owns a log lets go of it without sealing: a log would fill with segments of a few records each if every
call left one behind. The service that owns it seals, or `holdfast seal`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.shell_completion import CompletionItem

import holdfast
from holdfast import Keyring, Log, Settings, Topic
from holdfast.arguments import store_address
from holdfast.errors import HoldfastError, Invalid, NotFound
from holdfast.journal.proving.inspected_database import control_rows, is_keyed
from holdfast.log.local_parts import parts_of
from holdfast.log.topics.typed_topic import TypedTopic
from holdfast.log_directory import Directory
from holdfast.model.topic_name import is_name
from holdfast.sharing.opening import open_or_call
from holdfast.store.address import parse_url

Value = TypeVar("Value")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class LogDirectory(click.Path):
    """A log's directory. A store's URL is refused: taken as a path, it would make a directory with a strange name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. What looks like a URL is refused, and not repeated: it may carry a secret."""
        if isinstance(value, str) and _URL.match(value):
            self.fail(
                "a log's directory is needed here, not a store's URL; read, topics and status take both", param, ctx
            )
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Directories."""
        return complete_directory(ctx, param, incomplete)


def complete_directory(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Directories, which the shell lists itself."""
    return [CompletionItem(incomplete, type="dir")]


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics of the log whose directory comes before it on the line; no store is asked while someone types."""
    place = ctx.params.get("directory", ctx.params.get("place"))
    if not isinstance(place, Path):
        return []
    try:
        names = sorted(control_rows(Directory(place.absolute()).database).topic_names.values())
    except HoldfastError:  # no log, or a damaged one: the verb will say so
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and is_name(name)]


def completed(names: Callable[[Log], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """What completes a name in the log that stands before it, which is opened to read it; without its key, nothing."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        place = ctx.params.get("directory")
        if not isinstance(place, Path):
            return []
        silence, logger = logging.NullHandler(), logging.getLogger("holdfast")
        logger.addHandler(silence)
        try:
            with open_log(place, None, Settings(), read_only=True) as log:
                return [CompletionItem(name) for name in names(log) if name.startswith(incomplete) and is_name(name)]
        except HoldfastError:  # the verb will say so
            return []
        finally:
            logger.removeHandler(silence)

    return complete


directory_argument = click.argument("directory", metavar="DIR", type=LogDirectory(path_type=Path))
topic_argument = click.argument("topic", metavar="TOPIC", shell_complete=complete_topic)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line, errors included.")
keyring_option = click.option(
    "--keyring",
    "reference",
    metavar="REF",
    help="Where the keys are: env:NAME or file:PATH, never a key.  [env: HOLDFAST_CRYPTO__KEYRING]",
)

NEEDS_KEY = "give --keyring env:NAME or --keyring file:PATH, or set HOLDFAST_CRYPTO__KEYRING"


@contextmanager
def asking_for_key(keyring: Keyring | None) -> Iterator[None]:
    """Where something fails for lack of a key, say how one is given on the command line."""
    try:
        yield
    except Invalid as error:
        if keyring is None and "keyring" in error.hint:
            raise Invalid(error.message, hint=NEEDS_KEY) from error
        raise


def load_keyring(reference: str | None, settings: Settings) -> Keyring | None:
    """The keyring that the option names, or else the settings; None if neither does."""
    named = reference or settings.crypto.keyring
    return Keyring.from_reference(named) if named else None


def open_log(
    directory: Path, reference: str | None, settings: Settings, *, read_only: bool, stays: bool = False
) -> Log:
    """Open a log as the options and settings say; one that another process owns is changed by that one.

    A log that others share, or did last, is shared with them, also when nobody is there at this moment: its owner may
    have been killed, and the next one be about to come. `stays` is for what may take long: others are answered then.
    """
    keyring = load_keyring(reference, settings)
    share = not read_only and Directory(directory.absolute()).is_shared()
    unsealed = msgspec.structs.replace(settings.segments, seal_on_close=False)
    settings = msgspec.structs.replace(settings, segments=unsealed)
    try:
        if read_only or share:
            return holdfast.open(directory, settings=settings, keyring=keyring, read_only=read_only, share=share)
        return open_or_call(directory, settings, keyring, stays=stays)
    except Invalid as error:
        if keyring is None and is_keyed(Directory(directory.absolute()).database):
            raise Invalid(error.message, hint=NEEDS_KEY) from error
        raise


def open_served(directory: Path, reference: str | None, settings: Settings, *, share: bool) -> Log:
    """Open a log, or make one, for a service that stays: it is sealed when it is closed."""
    keyring = load_keyring(reference, settings)
    with asking_for_key(keyring):
        return holdfast.open(directory, settings=settings, keyring=keyring, share=share)


def owned(log: Log) -> Log:
    """The log of its owner: of a shared one, this process becomes that, and the others are its clients.

    A server writes under the numbers of other people's sessions, which only an owner can keep with the records.
    """
    news = parts_of(log).journal.news
    if news is None:
        return log
    owner = news.own()
    assert isinstance(owner, Log)
    return owner


def is_asked(log: Log) -> bool:
    """Whether the owner, another process that does not share the log, does all this, under settings of its own."""
    context = parts_of(log).context
    return context.journal.shared and not context.directory.is_shared()


def own_log(directory: Path, reference: str | None, settings: Settings) -> Log:
    """Own a log that must already exist, or have its owner do what is to be done."""
    Directory(directory.absolute()).require_log()
    return open_log(directory, reference, settings, read_only=False)


def find_topic(log: Log, name: str, partitions: int | None = None, codec: str | None = None) -> Topic | TypedTopic:
    """The topic as it is, raw or typed; a new one is raw, of this codec."""
    if codec is None:
        with suppress(Invalid, NotFound):  # it is raw, or does not exist: asked for as raw, it says what is wrong
            return log.topic(name, schema="latest", partitions=partitions)
    return log.topic(name, partitions=partitions, codec=codec)


def with_store(settings: Settings, url: str | None) -> Settings:
    """The settings with another store's address, if one is given."""
    if url is None:
        return settings
    return msgspec.structs.replace(settings, store=msgspec.structs.replace(settings.store, url=url))


def parsed(parse: Callable[[str], Value]) -> Callable[[click.Context, click.Parameter, str | None], Value | None]:
    """An option's value, read by one of holdfast's own parsers; what the parser refuses is a usage error."""

    def convert(_ctx: click.Context, _option: click.Parameter, text: str | None) -> Value | None:
        try:
            return None if text is None else parse(text)
        except Invalid as error:
            raise click.BadParameter(f"{error.message}; {error.hint}") from None

    return convert


def parsed_url(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """A store's address in its one spelling. An address that carries a secret is refused, and not repeated."""
    address = parsed(lambda given: parse_url(store_address(given)))(ctx, option, text)
    return None if address is None else address.url


store_option = click.option(
    "--store",
    "url",
    metavar="URL",
    callback=parsed_url,
    help="The store: s3://bucket/prefix, file:///directory …, never a secret.  [env: HOLDFAST_STORE__URL]",
)
