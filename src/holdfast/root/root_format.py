"""The form of a root: its format, and who vouches for its objects. `log.json` says it for the whole root.

    format 1   folders without `_` (`old_layout`), nothing is signed
    format 2   the present layout; in a log with keys every object but segments and leases is signed (`signed`)

With keys, only what they signed is believed: an object without a signature, or with another one, is `Corrupt`. A
keyring that is given for a root without keys is a mistake or a trap, and is refused. A root of format 1 cannot prove
its documents. With keys it is read only on request (`allow_unsigned`), because anybody who can write to a store could
make any root look like one of format 1. Without keys, signatures are taken off unchecked, and nothing is promised.

An owner knows which format its root has, and believes no `log.json` that says something else.
"""

from __future__ import annotations

import re

from holdfast.crypto.signatures import Signature, Signer, UnknownKey
from holdfast.errors import Corrupt, Invalid
from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import LogDocument
from holdfast.root.old_layout import new_key, old_key
from holdfast.store import layout
from holdfast.store.port import Body, ObjectInfo

_LOG_ID = re.compile(r"[0-9a-f]{32}\Z")
_FORGED = (
    "somebody without this log's key wrote it, or it was damaged: holdfast reconcile DIR --remote --deep --fix puts the"
    " true one back; what no log wrote can be removed by hand"
)
_ROTATED = "if keys were rotated, keep the older ones in the keyring; else somebody without the key wrote this object"


class RootForm:
    """One root's form, shared by everything in this process that reads or writes the root for one log."""

    def __init__(self, signer: Signer | None, *, log: str = "", allow_unsigned: bool = False) -> None:
        self._signer = signer
        self._allow_unsigned = allow_unsigned
        self.log = log
        """The log's id, once it is known; if it is given, another log is refused."""
        self.format = 0
        """The root's format; 0 before its `log.json` was seen or written."""
        self._is_signed = False
        self._is_owner = False

    @classmethod
    def of_owner(cls, signer: Signer | None, log: str, root_format: int) -> RootForm:
        """The form of the root that a log ships to; `root_format` is the format that the log remembers, 0 for none."""
        form = cls(signer, log=log, allow_unsigned=not root_format)
        form._is_owner = True
        form.format, form._is_signed = root_format, signer is not None and root_format > documents.OLD_ROOT
        return form

    @property
    def is_signed(self) -> bool:
        """Whether the root says that its objects are signed, once its `log.json` was seen."""
        return self._is_signed

    @property
    def is_authentic(self) -> bool:
        """Whether what is read here was proved by a key: then nobody else can have written it."""
        return self._is_signed and self._signer is not None

    # -- keys ---------------------------------------------------------------------------------------------

    def outside(self, key: str) -> str:
        """The key in the root of what the present layout calls `key`; also for folders."""
        return old_key(key) if self.format == documents.OLD_ROOT else key

    def inside(self, info: ObjectInfo) -> ObjectInfo:
        """The key of an object in the present layout."""
        return info._replace(key=new_key(info.key)) if self.format == documents.OLD_ROOT else info

    # -- bytes --------------------------------------------------------------------------------------------

    def signed(self, key: str, body: Body) -> Body:
        """An object as it is stored: with its signature, if this root is signed."""
        if key == layout.LOG:
            self.begin(documents.decode(body.read(), key, LogDocument))
        if not self._is_signed or not signature_place.is_signed_kind(key):
            return body
        assert self._signer is not None  # or nothing would be signed here
        data = body.read()
        return Body.of(signature_place.attach(key, data, self._signer.sign(self.log, key, data)))._replace(
            handed=body.handed
        )

    def proved(self, key: str, data: bytes) -> bytes:
        """An object without its signature; raises Corrupt unless this log's key signed it."""
        if key == layout.LOG:
            return self._learn(data)
        if not signature_place.is_signed_kind(key):
            return data
        if not self.format and self._signer is not None:
            raise Corrupt("the log's document is missing, and nothing here can be proved without it", path=layout.LOG)
        return self._checked(key, data) if self._is_signed else data

    def begin(self, document: LogDocument) -> None:
        """This process makes the root, or makes it anew."""
        self.format, self.log = document.format, document.log
        self._is_signed = self._signer is not None and document.format > documents.OLD_ROOT

    def _learn(self, data: bytes) -> bytes:
        bare, signature = signature_place.detach(layout.LOG, data)
        document = documents.decode(bare, layout.LOG, LogDocument)
        if not _LOG_ID.match(document.log) or not 0 <= document.created_us < 2**62:
            raise Corrupt("the log's document says what cannot be", path=layout.LOG)
        if self._is_owner:
            return self._recognised(document, bare, signature)
        if self.log and document.log != self.log:
            raise Invalid(
                f"this root belongs to another log log={document.log} expected={self.log}",
                hint="give every log a root of its own, and name the one that you mean;"
                " if this is its root, somebody has put another log there",
            )
        self._require_keys_fit(document, is_signed=signature is not None)
        if signature is not None and self._signer is not None:
            self._require_signed(self._signer, document.log, bare, signature)
        self.log, self.format, self._is_signed = document.log, document.format, signature is not None
        return bare

    def _recognised(self, document: LogDocument, bare: bytes, signature: Signature | None) -> bytes:
        """The owner's own document; the owner judges another log's."""
        if document.log != self.log:
            return bare
        if self.format and document.format != self.format:
            raise Corrupt(f"the root has another format than before format={document.format}", path=layout.LOG)
        is_signed = self._signer is not None and document.format > documents.OLD_ROOT
        if is_signed:
            self._require_signature(layout.LOG, bare, signature)
        self.format, self._is_signed = document.format, is_signed
        return bare

    def _require_keys_fit(self, document: LogDocument, *, is_signed: bool) -> None:
        if self._signer is None or is_signed or (document.format == documents.OLD_ROOT and self._allow_unsigned):
            return
        if document.format == documents.OLD_ROOT:
            raise Invalid(
                "this root was written before objects were signed: a keyring cannot prove it",
                hint="move it to the present format: holdfast migrate-root; or read it as it is: allow_unsigned",
            )
        raise Invalid(
            "a keyring was given, and the log at this root has no keys",
            hint="leave the keyring out; if the log is encrypted, somebody has replaced its log.json",
        )

    def _require_signed(self, signer: Signer, log: str, bare: bytes, signature: Signature) -> None:
        """The first object shows whether the keyring is this log's, so the errors speak of keyrings."""
        try:
            if signer.proves(log, layout.LOG, bare, signature):
                return
        except UnknownKey:
            raise Invalid(
                f"the keyring has no key {signature.key_id!r}, which signed this root",
                hint="add the older key behind the current one in the keyring",
            ) from None
        raise Invalid(
            f"key {signature.key_id!r} did not sign this root: the keyring is another log's, or log.json was forged",
            hint="give the keyring that this log was created with",
        )

    def _checked(self, key: str, data: bytes) -> bytes:
        bare, signature = signature_place.detach(key, data)
        if self._signer is not None:
            self._require_signature(key, bare, signature)
        return bare

    def _require_signature(self, key: str, bare: bytes, signature: Signature | None) -> None:
        assert self._signer is not None
        if signature is None:
            raise Corrupt("an object of the store is not signed", path=key, hint=_FORGED)
        try:
            if self._signer.proves(self.log, key, bare, signature):
                return
        except UnknownKey:
            raise Corrupt(
                f"an object of the store is signed with an unknown key key_id={signature.key_id!r}", path=key,
                hint=_ROTATED,
            ) from None  # fmt: skip
        raise Corrupt("an object of the store does not match its signature", path=key, hint=_FORGED)
