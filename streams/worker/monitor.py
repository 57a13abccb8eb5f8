"""A Faust monitor that does nothing per event: the stock one costs about 26 us for each, and our metrics are our own."""

from __future__ import annotations

from typing import Any

import faust

__all__ = ["LightMonitor"]


class LightMonitor(faust.Monitor):  # type: ignore[misc]
    """Keeps rebalances, assignments and commits; leaves out messages, events and offsets."""

    def on_message_in(self, tp: Any, offset: int, message: Any) -> None:
        """Nothing."""

    def on_stream_event_in(self, tp: Any, offset: int, stream: Any, event: Any) -> None:
        """Nothing."""

    def on_stream_event_out(self, tp: Any, offset: int, stream: Any, event: Any, state: Any = None) -> None:
        """Nothing."""

    def on_message_out(self, tp: Any, offset: int, message: Any) -> None:
        """Nothing."""
