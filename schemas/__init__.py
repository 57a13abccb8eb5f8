"""What crosses a process boundary: telemetry, frames, verdicts, decisions, policy. Depends on nothing else of slodrift."""
