"""Breaker decisions for serving hosts."""
