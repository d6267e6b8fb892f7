"""Retrieval hints, requested from the application when a message is about to name others: how those can be fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.caller import once
from holdfast.channels.channel import Channel
from holdfast.channels.protocol.sending import causal_history
from holdfast.channels.wire.message import HINT_BYTES_MAX

Provider = Callable[[str, str], bytes | None]


def fresh_hints(channel: Channel, provider: Provider | None) -> Mapping[str, bytes]:
    """Hints for messages that the next one will name and that have none yet."""
    if provider is None:
        return {}
    with once(channel.lock):
        unknown = [entry.message_id for entry in causal_history(channel.state) if not entry.retrieval_hint]
    found = {message_id: provider(channel.id, message_id) for message_id in unknown}
    # One that nobody would read must not keep us from sending: it would be in the way forever.
    hints = {message_id: hint for message_id, hint in found.items() if hint and len(hint) <= HINT_BYTES_MAX}
    for message_id, hint in hints.items():
        channel.set_hint(message_id, hint)
    return hints
