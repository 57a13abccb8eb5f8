"""Judges of pools by a policy file."""

from __future__ import annotations

from schemas.policy_file import Policy
from streams.judge import PoolJudge

__all__ = ["PolicyFactory"]


class PolicyFactory:
    """`JudgeFactory` of a policy.

    Args:
        policy: Read at the start; a new one takes effect with a restart.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def new(self, pool: str, epoch: int, generation: int) -> PoolJudge:
        """A judge that knows nothing yet."""
        return PoolJudge(
            pool, self._policy.for_pool(pool), policy_version=self._policy.version, epoch=epoch, generation=generation
        )

    def restore(self, pool: str, raw: bytes, epoch: int, generation: int) -> PoolJudge:
        """The judge that `PoolJudge.snapshot` wrote, under this policy."""
        return PoolJudge.restore(
            raw, self._policy.for_pool(pool), policy_version=self._policy.version, epoch=epoch, generation=generation
        )
