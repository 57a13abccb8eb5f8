"""Breaker decisions for serving hosts.

    from slodrift_client import BreakerClient

    client = BreakerClient("redis://localhost:6379/0", fleet="prod", pools=["llama3-70b/eu/h100"])
    if client.allow("gpu-017"):
        ...

`allow` answers from memory in well under a microsecond, never waits and never raises. Redis is read by a background thread.
"""

from slodrift_client.aio import AsyncBreakerClient
from slodrift_client.answers import Decision, PoolStatus, Status
from slodrift_client.cells import cell_of, pools_of
from slodrift_client.client import BreakerClient
from slodrift_client.probes import Lease
from slodrift_client.view import Limits

__all__ = ["AsyncBreakerClient", "BreakerClient", "Decision", "Lease", "Limits", "PoolStatus", "Status", "cell_of", "pools_of"]
