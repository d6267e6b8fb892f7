"""Who vouches for the objects of a root. `log.json` says it for the whole root.

In a log with keys every object but segments and leases is signed, and only what they signed is believed: an object
without a signature, or with another one, is `Corrupt`. A keyring that is given for a root without keys is a mistake or
a trap, and is refused. Without keys, signatures are taken off unchecked, and nothing is promised.

An owner knows whether its log has keys, and believes no `log.json` that says something else.
"""

from __future__ import annotations

import re

from holdfast.crypto.signatures import Signature, Signer, UnknownKey
from holdfast.errors import Corrupt, Invalid
from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import LogDocument
from holdfast.store import layout
from holdfast.store.port import Body

_LOG_ID = re.compile(r"[0-9a-f]{32}\Z")
_FORGED = (
    "a writer without this log's key wrote it, or it was damaged: holdfast reconcile DIR --remote --deep --fix puts the"
    " true one back; what no log wrote can be removed by hand"
)
_ROTATED = "if keys were rotated, keep the older ones in the keyring; else a writer without the key wrote this object"


class RootTrust:
    """What is believed at one root; shared by everything in this process that reads or writes it for one log."""

    def __init__(self, signer: Signer | None, *, log: str = "") -> None:
        self._signer = signer
        self.log = log
        """The log's id, once it is known; if it is given, another log is refused."""
        self.is_known = False
        """Whether the root's `log.json` was seen or written: it says whether its objects are signed."""
        self._is_signed = False
        self._is_owner = False

    @classmethod
    def of_owner(cls, signer: Signer | None, log: str) -> RootTrust:
        """Of the root that a log ships to, which is signed exactly if the log has keys."""
        trust = cls(signer, log=log)
        trust._is_owner = trust.is_known = True
        trust._is_signed = signer is not None
        return trust

    @property
    def is_signed(self) -> bool:
        """Whether the root says that its objects are signed, once its `log.json` was seen."""
        return self._is_signed

    @property
    def is_authentic(self) -> bool:
        """Whether what is read here was proved by a key: then nobody else can have written it."""
        return self._is_signed and self._signer is not None

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
        if not self.is_known and self._signer is not None:
            raise Corrupt("the log's document is missing, and nothing here can be proved without it", path=layout.LOG)
        return self._checked(key, data) if self._is_signed else data

    def begin(self, document: LogDocument) -> None:
        """This process makes the root, or makes it anew."""
        self.log, self.is_known, self._is_signed = document.log, True, self._signer is not None

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
                " if this is its root, another log was put there",
            )
        if self._signer is not None:
            self._require_signed(self._signer, document.log, bare, signature)
        self.log, self.is_known, self._is_signed = document.log, True, signature is not None
        return bare

    def _recognised(self, document: LogDocument, bare: bytes, signature: Signature | None) -> bytes:
        """The owner's own document; the owner judges another log's."""
        if document.log == self.log and self._signer is not None:
            self._require_signature(layout.LOG, bare, signature)
        return bare

    def _require_signed(self, signer: Signer, log: str, bare: bytes, signature: Signature | None) -> None:
        """The first object shows whether the keyring is this log's, so the errors speak of keyrings."""
        if signature is None:
            raise Invalid(
                "a keyring was passed, and the log at this root has no keys",
                hint="leave the keyring out; if the log is encrypted, its log.json was replaced",
            )
        try:
            if signer.proves(log, layout.LOG, bare, signature):
                return
        except UnknownKey:
            raise Invalid(
                f"the keyring has no key {signature.key_id!r}, which signed this root",
                hint="add the older key after the current one in the keyring",
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
                f"an object of the store is signed with an unknown key key_id={signature.key_id!r}",
                path=key,
                hint=_ROTATED,
            ) from None
        raise Corrupt("an object of the store does not match its signature", path=key, hint=_FORGED)
