"""Pages of listings, and removals of many: the XML of S3, written and read. Pure.

What comes is untrusted: its size is bounded before it gets here, a document type (where entities would be declared) is
refused, the encoding is UTF-8 whatever it says, and names that are no keys of ours are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element, ParseError, XMLParser
from xml.sax.saxutils import escape

from holdfast.errors import Invalid
from holdfast.store.object_keys import check_key
from holdfast.store.port import ObjectInfo, StoreUnavailable

PAGE_KEYS = 1_000
PAGE_BYTES_MAX = 16 * 2**20

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ListingPage(NamedTuple):
    """Some of what there is below a prefix."""

    objects: Sequence[ObjectInfo]
    """By their keys below the root."""
    folders: Sequence[str]
    """Whole, below the root, with the slash behind."""
    token: str
    """What the next page is asked for with; '' when this is the last one."""


def query(root: str, prefix: str, *, after: str | None, token: str, folders_only: bool) -> list[tuple[str, str]]:
    """The question for one page; `root` is the prefix of the root itself, with its slash."""
    parameters = [("list-type", "2"), ("encoding-type", "url"), ("max-keys", str(PAGE_KEYS)), ("prefix", root + prefix)]
    if folders_only:
        parameters.append(("delimiter", "/"))
    if token:
        parameters.append(("continuation-token", token))
    elif after is not None:
        parameters.append(("start-after", root + after))
    return parameters


def read_page(body: bytes, root: str, after: str | None) -> ListingPage:
    """A page of a listing, by keys below the root; raises StoreUnavailable when it is none."""
    top = _parsed(body)
    name = _namer(top)
    is_encoded = top.findtext(name("EncodingType")) == "url"
    tags = _Tags(name("Key"), name("Size"), name("LastModified"))
    found = [_object(element, tags, root, is_encoded) for element in top.iterfind(name("Contents"))]
    folders = [element.findtext(name("Prefix"), "") for element in top.iterfind(name("CommonPrefixes"))]
    is_last = top.findtext(name("IsTruncated")) != "true"
    token = "" if is_last else top.findtext(name("NextContinuationToken"), "")
    if not is_last and not token:
        raise _not_understood("it says that there is more, and not how to ask for it")
    objects = [info for info in found if info is not None and (after is None or info.key > after)]
    return ListingPage(objects, [_decoded(folder, is_encoded).removeprefix(root) for folder in folders], token)


def removal(root: str, keys: Sequence[str]) -> bytes:
    """The request to remove many objects; only those are answered that could not be removed."""
    named = "".join([f"<Object><Key>{escape(root + key)}</Key></Object>" for key in keys])
    return (
        '<?xml version="1.0" encoding="UTF-8"?><Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Quiet>true</Quiet>{named}</Delete>"
    ).encode()


def not_removed(body: bytes) -> Iterator[tuple[str, str]]:
    """Key and code of what could not be removed, and was there."""
    top = _parsed(body)
    name = _namer(top)
    for element in top.iterfind(name("Error")):
        code = element.findtext(name("Code"), "")
        if code != "NoSuchKey":
            yield element.findtext(name("Key"), ""), code


def _namer(top: Element) -> Callable[[str], str]:
    """Names of elements, in the namespace of the outermost one."""
    space, closing, _ = top.tag.rpartition("}")
    return lambda name: f"{space}{closing}{name}"


class _Tags(NamedTuple):
    """What an object's facts are called, in the namespace of the page."""

    key: str
    size: str
    modified: str


def _object(element: Element, tags: _Tags, root: str, is_encoded: bool) -> ObjectInfo | None:
    key = _decoded(element.findtext(tags.key, ""), is_encoded)
    if not key.startswith(root):
        return None
    try:
        key = check_key(key[len(root) :])
    except Invalid:
        return None  # nothing that this project made
    try:
        return ObjectInfo(key, int(element.findtext(tags.size, "")), _modified_us(element.findtext(tags.modified, "")))
    except (ValueError, OverflowError):
        raise _not_understood("an object without its size or its time") from None


@lru_cache(maxsize=1024)
def _modified_us(text: str) -> int:
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)


def _decoded(text: str, is_encoded: bool) -> str:
    return unquote_plus(text) if is_encoded and ("%" in text or "+" in text) else text


def _parsed(body: bytes) -> Element:
    parser = XMLParser()  # noqa: S314 - it gets no document type, so there are no entities to expand
    try:
        text = body.decode("utf-8")  # as text: then nothing in it says otherwise
        if "<!DOCTYPE" in text:
            raise _not_understood("it declares a document type")
        parser.feed(text)
        top: Element = parser.close()
    except (ParseError, ValueError):
        raise _not_understood("it is not XML") from None
    return top


def _not_understood(why: str) -> StoreUnavailable:
    return StoreUnavailable(f"the store's listing is not understood: {why}", cause="other")
