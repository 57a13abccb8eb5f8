"""GPU telemetry of a simulated node, consistent with what its engine does."""

from __future__ import annotations

import numpy as np

from schemas.telemetry import GpuEvent
from streams.simulate.engine import Engine
from streams.simulate.faults import Fault

__all__ = ["gpu_event"]

_CLOCK_HZ = 1.98e9
_MEMORY_BYTES = 8.5e10
_WEIGHTS_RATIO = 0.45
_KV_RATIO = 0.45
_PCIE_BYTES_PER_S = 6.4e10  # PCIe 5.0 x16
_HW_THERMAL_SLOWDOWN = 0x40  # NVML clocks event reason


def gpu_event(ts_s: float, pool: str, engine: Engine, faults: list[Fault], rng: np.random.Generator) -> GpuEvent:
    """State of the node's GPU at `ts_s`; `faults` are those active on it."""
    busy_ratio = min(1.0, 0.25 + 0.75 * engine.n_running / engine.spec.max_batch) if engine.n_running else 0.0
    hung = any(f.kind.hang for f in faults)
    throttle = next((f.strength for f in faults if f.kind.thermal), 1.0)
    pcie_busy = any(f.kind.pcie for f in faults)
    noise = rng.normal(1.0, 0.01, 4).clip(0.9, 1.1).tolist()
    used = _WEIGHTS_RATIO + _KV_RATIO  # the engine takes its KV cache once, at start
    return GpuEvent(
        ts=round(ts_s, 6), pool=pool, node=engine.name, gpu=f"GPU-{engine.name}",
        sm_util_ratio=round(min(1.0, (1.0 if hung else busy_ratio) * noise[0]), 4),
        mem_used_bytes=used * _MEMORY_BYTES, mem_total_bytes=_MEMORY_BYTES, mem_free_bytes=(1 - used) * _MEMORY_BYTES,
        mem_largest_free_bytes=round((1 - used) * 0.8 * _MEMORY_BYTES),
        pcie_tx_bytes_per_s=round(2e8 * busy_ratio * noise[1]),
        pcie_rx_bytes_per_s=round((0.95 * _PCIE_BYTES_PER_S if pcie_busy else 1e9 * busy_ratio) * noise[1]),
        sm_clock_hz=round(_CLOCK_HZ / throttle, -6), throttle_reasons=_HW_THERMAL_SLOWDOWN if throttle > 1 else 0,
        temp_celsius=round((88 if throttle > 1 else 45 + 25 * busy_ratio) * noise[2], 1),
        power_watts=round((120 + 560 * busy_ratio / throttle) * noise[3], 1),
    )  # fmt: skip
