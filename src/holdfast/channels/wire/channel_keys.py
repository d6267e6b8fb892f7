"""Which channels have a key, and which one: given by reference, as everywhere (`holdfast.crypto.keyring`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.channels.wire.encrypted_messages import ChannelCipher
from holdfast.crypto.keyring import Keyring
from holdfast.errors import Invalid

Given = Keyring | str
"""A keyring, or a reference to one: `env:NAME`, `file:PATH`."""
Keys = Given | Mapping[str, Given] | Callable[[str], Given | None]
"""For all channels; by channel, where those not named have none; or a function of the channel's id."""


class ChannelKeys:
    """The keys of channels. References are followed at once: a wrong one fails before anything is sent in the clear."""

    def __init__(self, keys: Keys | None) -> None:
        self._of: Callable[[str], Given | None]
        if keys is None or isinstance(keys, Keyring | str):
            keyring = None if keys is None else _keyring(keys)
            self._of = lambda channel_id: keyring
        elif isinstance(keys, Mapping):
            self._of = {channel_id: _keyring(given) for channel_id, given in keys.items()}.get
        else:
            if not callable(keys):
                raise _not_understood()
            self._of = keys

    def has(self, channel_id: str) -> bool:
        """Whether a channel has a key."""
        return self._of(channel_id) is not None

    def cipher(self, channel_id: str) -> ChannelCipher | None:
        """What encrypts a channel's messages; None if it has no key."""
        given = self._of(channel_id)
        return None if given is None else ChannelCipher(channel_id, _keyring(given))


def _keyring(given: Given) -> Keyring:
    if isinstance(given, Keyring):
        return given
    if not isinstance(given, str):
        raise _not_understood()
    return Keyring.from_reference(given)


def _not_understood() -> Invalid:
    # What was given may be the key itself: it must not reach a message.
    return Invalid(
        "the key of a channel is not understood",
        hint="give a holdfast.Keyring, 'env:NAME' or 'file:PATH'; for several channels a dict, or a function of the id",
    )
