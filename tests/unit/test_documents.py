"""The store's documents: what goes in comes out, every field is under the check, and nothing else is accepted."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast import Corrupt, Invalid
from holdfast.root.objects import documents
from holdfast.root.objects.documents import (
    AnyDocument,
    Document,
    LogDocument,
    ManifestDocument,
    decode,
    decode_manifest,
    encode,
)

pytestmark = pytest.mark.unit

KEY = "the/key.json"
KINDS = typing.get_args(AnyDocument)

whole = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAVES = {int: whole, str: text}


def values_of(kind: object) -> st.SearchStrategy[object]:
    """Any value that a field of this type can have."""
    if kind in LEAVES:
        return LEAVES[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return st.sampled_from(inner)
    if origin is tuple and Ellipsis not in inner:
        return st.tuples(*map(values_of, inner))
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=3)
    if msgspec.UnsetType in inner:
        return st.just(msgspec.UNSET) | values_of(inner[0])
    if type(None) in inner:
        return st.none() | values_of(next(k for k in inner if k is not type(None)))
    return structs_of(kind)


def structs_of(kind: object) -> st.SearchStrategy[object]:
    fields = {field.name: values_of(field.type) for field in msgspec.structs.fields(kind)}
    fields = {name: values for name, values in fields.items() if name not in ("format", "check")}
    return st.builds(kind, **fields)


def unchecked(document: AnyDocument) -> AnyDocument:
    return msgspec.structs.replace(document, check="")


def small(kind: type[AnyDocument]) -> AnyDocument:
    """Some document of a kind, always the same."""
    simple = {
        int: 3,
        str: "text",
        documents.RetentionLimits | None: documents.RetentionLimits(1, 2, 3),
        dict[str, dict[str, int]]: {},
    }
    simple[tuple[documents.SchemaVersion, ...]] = (documents.SchemaVersion("fingerprint", "definition"),)
    simple[tuple[documents.RewrittenFile, ...]] = simple[tuple[documents.RewrittenFile, ...] | None] = ()
    simple[tuple[tuple[int, int], ...]] = ((1, 2),)
    simple[tuple[documents.SegmentDocument, ...]] = ()
    simple[tuple[int, int] | msgspec.UnsetType] = (1, 2)
    simple[dict[str, documents.PartitionEnd]] = {"0": documents.PartitionEnd(1, 1, 3, "chain")}
    simple[dict[str, int]] = {"writer": 3}
    fields = [f for f in msgspec.structs.fields(kind) if f.name not in ("format", "check")]
    return kind(**{f.name: "open" if f.name == "purpose" else simple[f.type] for f in fields})


any_document = st.one_of(*map(structs_of, KINDS))
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def refused(data: bytes, kind: type[Document]) -> None:
    with pytest.raises(Corrupt) as caught:
        decode(data, KEY, kind)
    assert caught.value.path == KEY
    assert caught.value.hint


# -- good documents ---------------------------------------------------------------------------------------


@given(any_document)
def test_what_goes_in_comes_out(document):
    """Every field comes back, and the check with it."""
    found = decode(encode(document), KEY, type(document))
    assert type(found) is type(document)
    assert unchecked(found) == document
    assert len(found.check) == 32


@given(any_document)
def test_equal_facts_are_equal_bytes(document):
    """A writer recognises its own object by its bytes, also when it was read and written again."""
    data = encode(document)
    assert encode(decode(data, KEY, type(document))) == data
    assert encode(msgspec.structs.replace(document, check="something else")) == data


@every_kind
def test_an_object_is_one_line_of_json(kind):
    """Any tool reads it: its kind and format come first, its check last, a newline ends it."""
    data = encode(small(kind))
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    names = list(json.loads(data))
    assert (names[:3], names[-1]) == (["type", "format", "log"], "check")


# -- other documents --------------------------------------------------------------------------------------


@given(any_document, st.data())
def test_every_field_is_under_the_check(document, data):
    """One other value in one field, and the check no longer matches."""
    field = data.draw(st.sampled_from([f for f in msgspec.structs.fields(type(document)) if f.name != "format"]))
    other = data.draw(values_of(field.type))
    checked = decode(encode(document), KEY, type(document))
    assume(getattr(checked, field.name) != other)
    changed = msgspec.structs.replace(checked, **{field.name: other})
    refused(msgspec.json.encode(changed), type(document))


@every_kind
def test_every_flipped_bit_is_found(kind):
    """Whichever byte changes, the object is refused; or only white space did, and it says what it said."""
    document = small(kind)
    data = encode(document)
    for at in range(len(data)):
        for bit in range(8):
            damaged = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            try:
                found = decode(damaged, KEY, kind)
            except (Corrupt, Invalid):
                continue
            assert unchecked(found) == document
            assert damaged.split() == data.split()


@every_kind
def test_every_cut_is_found(kind):
    """An object that lost bytes at its end, or gained some, is Corrupt."""
    data = encode(small(kind))
    for damaged in [*(data[:size] for size in range(len(data) - 1)), data + b"x", data + data]:
        refused(damaged, kind)


@given(st.binary(max_size=200))
def test_noise_is_corrupt(noise):
    """Hostile bytes are Corrupt, also inside of a document."""
    for data in (noise, b'{"type":"log","format":1,' + noise, b'{"type":"log","log":"' + noise + b'"}'):
        refused(data, LogDocument)


@every_kind
def test_another_kind_is_refused(kind):
    """A whole document under the key of another kind is Corrupt; but a sink's topic is a topic."""
    document = small(kind)
    for other in KINDS:
        if not issubclass(kind, other):
            refused(encode(document), other)


@every_kind
def test_a_manifest_object_is_one_of_two_kinds(kind):
    """A segment or a start; everything else is Corrupt in their place."""
    document = small(kind)
    if isinstance(document, ManifestDocument):
        assert unchecked(decode_manifest(encode(document), KEY)) == document
        return
    with pytest.raises(Corrupt) as caught:
        decode_manifest(encode(document), KEY)
    assert caught.value.path == KEY


@every_kind
def test_another_label_is_refused(kind):
    """A document that is relabelled does not pass for one of the other kind."""
    content = json.loads(encode(small(kind)))
    for other in KINDS:
        if other is not kind:
            content["type"] = other.__struct_config__.tag
            refused(json.dumps(content).encode(), other)


@every_kind
def test_unknown_fields_are_refused(kind):
    """Nothing is ignored: what a newer holdfast adds has a newer format."""
    content = json.loads(encode(small(kind)))
    refused(json.dumps(content | {"more": 1}).encode(), kind)


@every_kind
def test_missing_fields_are_refused(kind):
    """Each field is there; what has a default is under the check all the same."""
    content = json.loads(encode(small(kind)))
    for name in content:
        if name != "format":  # which may be left out as long as it is 1, like any default
            refused(json.dumps({k: v for k, v in content.items() if k != name}).encode(), kind)


@every_kind
def test_a_newer_format_is_refused_by_its_number(kind):
    """An object of a newer holdfast is Invalid, with what to do, whatever else it holds."""
    content = json.loads(encode(small(kind))) | {"format": documents.FORMAT + 1}
    newer = msgspec.structs.replace(small(kind), format=documents.FORMAT + 1)
    for data in (json.dumps(content), json.dumps(content | {"more": [1]}), '{"format":9}', encode(newer)):
        with pytest.raises(Invalid, match="another version of holdfast") as caught:
            decode(data if isinstance(data, bytes) else data.encode(), KEY, kind)
        assert "newer one" in caught.value.hint


def test_what_is_too_large_is_not_parsed(monkeypatch):
    """A document has a limit."""
    data = encode(small(LogDocument))
    monkeypatch.setattr(documents, "_DOCUMENT_BYTES_MAX", len(data))
    assert unchecked(decode(data, KEY, LogDocument)) == small(LogDocument)
    monkeypatch.setattr(documents, "_DOCUMENT_BYTES_MAX", len(data) - 1)
    refused(data, LogDocument)


@pytest.mark.parametrize("start", [b'{"x":', b'{"type":"log","format":1,"log":'])
def test_what_is_too_deep_is_corrupt(start):
    """Brackets without end do not come out as somebody else's exception."""
    refused(start + b'{"x":' * 100_000, LogDocument)


@pytest.mark.parametrize("number", [0, -1])
def test_a_format_that_never_was_is_corrupt(number):
    """No holdfast wrote a format below 1."""
    refused(encode(msgspec.structs.replace(small(LogDocument), format=number)), LogDocument)


@pytest.mark.parametrize(("ours", "theirs"), [(b":", b" : "), (b'"created_us":3', b'"created_us":4,"created_us":3')])
def test_a_document_has_one_spelling(ours, theirs):
    """Equal facts are equal bytes, so other bytes are not what a holdfast wrote."""
    refused(encode(small(LogDocument)).replace(ours, theirs), LogDocument)
