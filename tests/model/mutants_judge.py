"""Guards of the judge, the log, orders and the audit, each with the edit that takes it away."""

from __future__ import annotations

from mutant import MODEL, m

__all__ = ["MUTANTS"]

CAPS = "tests/detectors/test_caps.py"
BREAKER = "tests/detectors/test_breaker.py"
AUDIT = "tests/audit/test_audit_verify.py"
ORDERS = "tests/override/test_override_judge.py"

MUTANTS = (  # -- the judge
    m(
        "cap-before",
        "the cap counts the one about to open",
        "detectors/caps.py",
        "if n_away + 1 > limit:",
        "if n_away > limit:",
        CAPS,
    ),
    m(
        "velocity",
        "few opens a minute",
        "detectors/caps.py",
        "if recent + 1 > velocity_limit(n_eligible, caps):",
        "if False:",
        CAPS,
    ),
    m(
        "freeze",
        "a shared cause freezes opens",
        "detectors/caps.py",
        "elif n_bad >= 2 and n_bad > caps.freeze_share * n_eligible:",
        "elif False:",
        CAPS,
    ),
    m(
        "freeze-blind",
        "lost telemetry freezes opens",
        "detectors/caps.py",
        "elif n_known - n_fresh >= 2 and n_fresh < caps.min_fresh_ratio * n_known:",
        "elif False:",
        CAPS,
    ),
    m(
        "dwell",
        "least time closed",
        "detectors/breaker.py",
        "return record.since_s is None or t_s - record.since_s >= rules.min_closed_s",
        "return True",
        BREAKER,
    ),
    m(
        "back-off",
        "open times double",
        "detectors/breaker.py",
        "rules.open_s * 2.0 ** min(streak - 1, 30)",
        "rules.open_s",
        BREAKER,
    ),
    m(
        "back-off-end",
        "open times are bounded",
        "detectors/breaker.py",
        " * unit), longest_s), 3)",
        " * unit), 1e9), 3)",
        BREAKER,
    ),
    m(
        "flap-latch",
        "flapping latches",
        "detectors/breaker.py",
        "latched = len(trips_s) >= rules.max_opens",
        "latched = False",
        BREAKER,
    ),
    m(
        "no-verdict",
        "half-open ends without a verdict",
        "detectors/breaker.py",
        "if t_s - since_s >= rules.half_open_max_s:",
        "if False:",
        BREAKER,
    ),
    # -- the log
    m(
        "void",
        "decisions of former owners are void",
        "streams/worker/decision_log.py",
        "if record.version[1] < self.epoch:",
        "if False:",
        "tests/worker/test_decision_log.py",
    ),
    m(
        "log-first",
        "hosts hear of nothing that is not in the log",
        "streams/worker/outputs.py",
        "            await self._decide(owned, decisions)\n",
        "            pass\n",
        MODEL,
    ),
    m(
        "tx",
        "a decision is appended once",
        "streams/worker/partition.py",
        "return [d for output in outputs for d in output.decisions if d.tx not in self.log.known]",
        "return [d for output in outputs for d in output.decisions]",
        MODEL,
    ),
    m(
        "late-snapshot",
        "a replaced owner's snapshot brings nothing void back",
        "streams/worker/takeover.py",
        "if any(claimed < offset < start for offset in claims(records)):",
        "if False:",
        MODEL,
    ),
    m(
        "forget",
        "a forged head does not make the judge forget",
        "streams/worker/projector.py",
        "pool.fenced = True  #",
        "self.forget([name])  #",
        "tests/worker/test_projector.py",
    ),
    m(
        "blind",
        "a judge cut off from Kafka says nothing",
        "streams/worker/projector.py",
        "if not self._may_speak():",
        "if False:",
        "tests/worker/test_projector.py",
    ),
    m(
        "fold-order",
        "older decisions change nothing",
        "sinks/projection.py",
        "if decision.version <= self.version:",
        "if False:",
        "tests/sinks/test_decision_sink.py",
    ),
    m(
        "fold-capped",
        "what the cap held back takes nothing away",
        "sinks/projection.py",
        "if decision.capped:",
        "if False:",
        "tests/sinks/test_decision_sink.py",
    ),
    # -- orders and audit
    m(
        "order-signature",
        "orders are verified",
        "streams/judge/overrides.py",
        "verify_override(event, keyring_of(self.rules.keys))",
        "pass",
        ORDERS,
    ),
    m(
        "order-length",
        "an order ends after four hours",
        "schemas/override.py",
        "if not event.start < event.end <= event.start + max_s:",
        "if False:",
        ORDERS,
    ),
    m(
        "order-once",
        "an order is used once",
        "streams/judge/overrides.py",
        "if event.id in self.used or any(event.id == other.id for other in self.pending):",
        "if False:",
        ORDERS,
    ),
    m(
        "audit-hash",
        "the chain is computed anew",
        "sinks/audit_verify.py",
        "[link(e.prev, e.pool, e.n, e.partition, e.offset, bytes(e.decision)) for e in entries]",
        "[e.hash for e in entries]",
        AUDIT,
    ),
    m(
        "audit-signature",
        "anchors are verified",
        "sinks/audit_verify.py",
        'keys.verify("slodrift-anchor-v1", line)',
        "pass",
        AUDIT,
    ),
    m("audit-end", "a cut end is noticed", "sinks/audit_verify.py", "if top_anchor > top:", "if False:", AUDIT),
    m("audit-order", "order is verified", "sinks/audit_verify.py", "if after < before:", "if False:", AUDIT),
    m(
        "audit-anchored",
        "entries without an anchor are not vouched for",
        "sinks/audit_verify.py",
        "if self.entries and not self.anchors:",
        "if False:",
        AUDIT,
    ),
)
