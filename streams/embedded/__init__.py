"""Kafka, Redis and ClickHouse on one machine without installing any of them."""

from streams.embedded.stack import EmbeddedStack

__all__ = ["EmbeddedStack"]
