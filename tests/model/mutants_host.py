"""Guards of the function in Redis and of the serving hosts, each with the edit that takes it away."""

from __future__ import annotations

from mutant import MODEL, m

__all__ = ["MUTANTS"]

FUNCTION = "tests/sinks/test_redis_function.py"
VIEW = "tests/client/test_view.py"
SIGNED = "tests/client/test_signed_heads.py"
GATE = "tests/client/test_gate.py"
LAST_GOOD = "tests/client/test_last_good.py"
CONTRACT = "tests/client/test_client_contract.py"
LUA = "schemas/redis/slodrift.lua"
CLIENT = "client/slodrift_client/"

MUTANTS = (
    # -- the function in Redis
    m("lua-cap", "Redis refuses a state over its cap", LUA, "if refuse then return", "if false then return", FUNCTION),
    m("lua-cap-before", "Redis counts after the action", LUA, "wanted > cap, wanted", "wanted > cap + 1, wanted", FUNCTION),
    m("lua-cap-closes", "a cap in Redis delays no close", LUA, "adds and wanted > cap", "wanted > cap", FUNCTION),
    m(
        "lua-cap-loss",
        "a loss does not turn the cap on closes",
        LUA,
        "if not stored then return false, 0 end",
        "stored = stored or {}",
        FUNCTION,
    ),
    m("lua-version", "Redis compares versions", LUA, "if order < 0 then", "if false then", FUNCTION),
    m(
        "lua-fence",
        "an expired head keeps the fence",
        LUA,
        "if ended and compare(new, ended, 3) < 0 then",
        "if false then",
        FUNCTION,
    ),
    m(
        "lua-conflict",
        "one version, one state",
        LUA,
        "if order == 0 or (compare(new, old, 3) == 0",
        "if (compare(new, old, 3) == 9",
        FUNCTION,
    ),
    m(
        "lua-entry",
        "what is written is checked before the first write",
        LUA,
        "if not is_entry(entry) then",
        "if false then",
        FUNCTION,
    ),
    # -- what a host believes
    m("ratchet", "a host never goes back", CLIENT + "view.py", "if order < self._newest:", "if False:", VIEW),
    m("ratchet-key", "a new key ends the old one", CLIENT + "signature.py", "return known[0]", "return 0", SIGNED),
    m(
        "conflict",
        "a host takes one state per version",
        CLIENT + "view.py",
        "if self.head is not None and head.version == self.head.version and head.snap_sha256 != self.head.snap_sha256:",
        "if False:",
        VIEW,
    ),
    m(
        "signature",
        "signatures are verified",
        CLIENT + "signature.py",
        "known[1].verify(sig, _DOMAIN + raw[: found.start(2)])",
        "pass",
        SIGNED,
    ),
    m(
        "unsigned",
        "unsigned heads are refused",
        CLIENT + "signature.py",
        'raise Refused("unsigned", "the head has no signature, and this host trusts signed ones alone")',
        "return 0",
        SIGNED,
    ),
    m(
        "binding",
        "a state of another pool is refused",
        CLIENT + "contract.py",
        'if fields.get("fleet") != fleet or fields.get("pool") != pool:',
        "if False:",
        SIGNED,
        CONTRACT,
    ),
    m(
        "snapshot-hash",
        "the snapshot is the head's",
        CLIENT + "contract.py",
        "if len(raw) != head.snap_len or hashlib.sha256(raw).hexdigest() != head.snap_sha256:",
        "if len(raw) != head.snap_len:",
        MODEL,
        CONTRACT,
    ),
    m(
        "entry-bounds",
        "no open ends more than 300 s ahead",
        CLIENT + "contract.py",
        "not_after_ms - head.issued_ms > MAX_AHEAD_MS):",
        "False):",
        CONTRACT,
    ),
    m(
        "complete",
        "a list that is not complete is refused",
        CLIENT + "contract.py",
        'if fields.get("complete") is not True or type(listed) is not list:',
        "if type(listed) is not list:",
        CONTRACT,
    ),
    m(
        "host-cap",
        "a host has caps of its own",
        CLIENT + "view.py",
        "if len(listed) > cap and any(e.subject not in known for e in listed):",
        "if False:",
        VIEW,
    ),
    m(
        "host-cap-before",
        "a host counts after the action",
        CLIENT + "view.py",
        "if len(listed) > cap and any",
        "if len(listed) > cap + 1 and any",
        VIEW,
    ),
    m(
        "host-cap-closes",
        "a cap on a host delays no close",
        CLIENT + "view.py",
        "if len(listed) > cap and any(e.subject not in known for e in listed):",
        "if len(listed) > cap:",
        VIEW,
    ),
    m(
        "host-population",
        "a claimed population widens no cap",
        CLIENT + "view.py",
        "return head.n_eligible if self.pool_size is None else min(head.n_eligible, int(self.pool_size * 1.1))",
        "return head.n_eligible",
        VIEW,
    ),
    m(
        "host-comeback",
        "what ended for want of news comes back within the cap",
        CLIENT + "view.py",
        "if self.age_s(now) > STALE_S:  #",
        "if False:  #",
        VIEW,
    ),
    m(
        "panic",
        "above 30 % nothing is obeyed",
        CLIENT + "view.py",
        "self.panic = nodes > max(1, int(self.limits.panic_ratio * self.population(head)))",
        "self.panic = False",
        VIEW,
    ),
    m("stale", "a stale open ends", CLIENT + "view.py", "if now - heard_at > STALE_S:", "if False:", VIEW),
    m(
        "frozen",
        "a repeated head is no heartbeat",
        CLIENT + "view.py",
        "if (rank, *head.version, head.hb) > self._newest:",
        "if (rank, *head.version, head.hb) >= self._newest:",
        VIEW,
    ),
    m(
        "wall-clock",
        "staleness is by the monotonic clock",
        CLIENT + "reader.py",
        "self._clock = clock",
        "self._clock = wall",
        MODEL,
    ),
    m("expiry", "an open ends by itself", CLIENT + "view.py", "if now < ends_at:", "if True:", VIEW),
    m(
        "file-age",
        "an old file is worth nothing",
        CLIENT + "lastgood.py",
        "if not 0.0 <= age_s <= MAX_AGE_S:",
        "if False:",
        LAST_GOOD,
    ),
    m(
        "file-verified",
        "a file is verified like Redis",
        CLIENT + "reader.py",
        "view.offer(saved.raw_head, saved.raw_snapshot, self._clock(), file_age_s=saved.age_s)",
        "keys, view._keys = view._keys, None; "
        "view.offer(saved.raw_head, saved.raw_snapshot, self._clock(), file_age_s=saved.age_s); view._keys = keys",
        SIGNED,
    ),
    m(
        "file-fresh",
        "a file is stale from the start",
        CLIENT + "view.py",
        "self._pulse.advanced_at = now - STALE_S",
        "pass",
        VIEW,
    ),
    m("file-spent", "a restart prolongs no open", CLIENT + "view.py", "/ 1000 - spent_s", "/ 1000", VIEW),
    m(
        "refusals",
        "a host refuses a bounded share of its requests",
        CLIENT + "refusals.py",
        "if wanted > budget or self._refused + 1 > budget:",
        "if False:",
        "tests/client/test_actions.py",
    ),
    m(
        "retry-budget",
        "a host names a fallback to a bounded share",
        CLIENT + "retries.py",
        "if self._taken + 1 > max(LEAST, self.most * self._asked):",
        "if False:",
        "tests/client/test_actions.py",
    ),
    m(
        "host-sessions",
        "a host bounds sessions",
        CLIENT + "view.py",
        '[e for e in taken if e.scope == "session"], limits.max_sessions)',
        '[e for e in taken if e.scope == "session"], 1 << 31)',
        VIEW,
    ),
    # -- probes
    m(
        "lease-exit",
        "a lease comes back when the request ends",
        CLIENT + "probes.py",
        "trace: TracebackType | None) -> None:\n        self.release()",
        "trace: TracebackType | None) -> None:\n        pass",
        GATE,
    ),
    m(
        "lease-timeout",
        "a lease comes back after its timeout",
        CLIENT + "probes.py",
        "if now < runs_out or",
        "if key in self._taken or",
        GATE,
    ),
    m("lease-one", "one probe of a subject at a time", CLIENT + "probes.py", "if now < runs_out or", "if", GATE),
    m(
        "probe-hosts",
        "few hosts probe",
        CLIENT + "probes.py",
        "return sum(weight(other) > mine for other in hosts if other != host) < n",
        "return True",
        GATE,
    ),
)
