"""A Faust schema that decodes nothing: the agent gets what the transport made.

Decoding in the agent keeps bad bytes in our hands: Faust acknowledges what it cannot decode and drops it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from faust.serializers.schemas import Schema

__all__ = ["PassThroughSchema"]


class PassThroughSchema(Schema):  # type: ignore[misc]
    """Keys and values as they are in the message."""

    def __init__(self) -> None:
        super().__init__(key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw")

    def compile(
        self, app: Any, *, on_key_decode_error: Any, on_value_decode_error: Any, default_propagate: bool = False
    ) -> Callable[..., Awaitable[Any]]:
        """The function the conductor calls for each message."""
        create_event = app.create_event

        async def decode(message: Any, *, propagate: bool = default_propagate) -> Any:
            return create_event(message.key, message.value, message.headers, message)

        return decode
