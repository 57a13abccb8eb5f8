"""The judge: from requests and state events of a pool to verdicts, findings and breaker decisions, one tick after the other."""

from streams.judge.pool_judge import PoolJudge
from streams.judge.results import TickOutput
from streams.judge.status import TickWindows

__all__ = ["PoolJudge", "TickOutput", "TickWindows"]
