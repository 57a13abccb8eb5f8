"""Faults injected for real into the whole path, with the known answer beside it: `python -m bench.faults` (make faults)."""
