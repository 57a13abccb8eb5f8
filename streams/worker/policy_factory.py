"""Judges of pools by a policy file."""

from __future__ import annotations

import structlog

from schemas.policy import PoolPolicy
from schemas.policy_file import Policy
from streams.judge import PoolJudge

__all__ = ["PolicyFactory"]

log = structlog.get_logger(__name__)


class PolicyFactory:
    """`JudgeFactory` of a policy.

    Args:
        policy: Read at the start; a new one takes effect with a restart.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def new(self, pool: str, epoch: int, generation: int) -> PoolJudge:
        """A judge that knows nothing yet."""
        return PoolJudge(pool, self._settings(pool), policy_version=self._policy.version, epoch=epoch, generation=generation)

    def restore(self, pool: str, raw: bytes, epoch: int, generation: int) -> PoolJudge:
        """The judge that `PoolJudge.snapshot` wrote, under this policy."""
        return PoolJudge.restore(
            raw, self._settings(pool), policy_version=self._policy.version, epoch=epoch, generation=generation
        )

    def _settings(self, pool: str) -> PoolPolicy:
        settings = self._policy.for_pool(pool)
        if settings.cells > 1:
            log.warning(
                "a pool that is split is judged under its own name, too: it was before the split, or an agent or a framer with "
                "another policy writes frames under it; hosts that follow its cells do not hear of it (schemas.cells.cell_of)",
                pool=pool, cells=settings.cells,
            )  # fmt: skip
        return settings
