"""Breakers of everything that is no node: request classes, session buckets, the pool."""
