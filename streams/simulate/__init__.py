"""A simulated fleet: nodes with continuous batching, whose latency comes from queueing, and faults injected by name."""
