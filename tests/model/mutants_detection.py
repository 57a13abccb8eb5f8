"""Properties of the detectors, each with the edit that breaks it."""

from __future__ import annotations

from mutant import m

__all__ = ["MUTANTS"]

BANK = "tests/detectors/test_bank.py"
DRIFT = "tests/detectors/test_drift.py"
GRADUATION = "tests/detectors/test_graduation.py"
HISTOGRAM = "tests/detectors/test_histogram.py"
BUSY = "tests/detectors/test_histogram_busy.py"
HOURS = "tests/detectors/test_hours.py"
TAIL = "tests/detectors/test_tail.py"
DYNAMIC = "tests/detectors/test_dynamic_slo.py"
LONG = "tests/judge/test_long_drift.py"
CONTRARY = "tests/judge/test_contrary_values.py"
DAMAGED = "tests/replay/test_replay_damaged.py"

MUTANTS = (  # -- divergences
    m(
        "kl-finite",
        "KL of counts without smoothing is finite",
        "detectors/drift.py",
        "    q = np.maximum(q, 1e-300)\n",
        "",
        DRIFT,
    ),
    m(
        "kl-equal",
        "KL of equal counts is zero",
        "detectors/drift.py",
        "p, q = _distribution(current, add), _distribution(baseline, add)",
        "p, q = _distribution(current, add), _distribution(baseline, 2 * add)",
        DRIFT,
    ),
    m(
        "chain-rule",
        "mix and service parts add up",
        "detectors/drift.py",
        "service = (p_mix * _sum_plogpq(inside_p, inside_q).sum(axis=-1)).sum(axis=-1)",
        "service = (q_mix * _sum_plogpq(inside_p, inside_q).sum(axis=-1)).sum(axis=-1)",
        DRIFT,
    ),
    # -- histograms
    m(
        "merge",
        "histograms merge in any grouping",
        "detectors/histogram.py",
        "        total += part.astype(np.uint64, copy=False)",
        "        total = np.maximum(total, part.astype(np.uint64, copy=False))",
        HISTOGRAM,
    ),
    m("wrap", "counts of 16 bits do not wrap", "detectors/histogram.py", "while total.max() > _MOST:", "while False:", BUSY),
    # -- one result, however it was reached
    m("canonical", "order of rows does not matter", "detectors/learning.py", "    log = log.canonical()\n", "", GRADUATION),
    m(
        "bank-state",
        "a restored bank goes on as if nothing had happened",
        "detectors/bank.py",
        '"log": pack(self._log.arrays()),',
        '"log": pack(Rows.none().arrays()),',
        BANK,
    ),
    m(
        "incident",
        "an incident never becomes normal",
        "detectors/baseline.py",
        "good = state.learned & (state.bad_block < block + 1 - len(state.blocks))",
        "good = state.learned.copy()",
        BANK,
    ),
    # -- hour of day
    m("hour-shrinkage", "thin hours keep the day", "detectors/hours.py", "return part * centred,", "return centred,", HOURS),
    m(
        "hour-history",
        "nothing before two days",
        "detectors/hours.py",
        "old = table[..., _SPAN] >= MIN_SPAN_S",
        "old = table[..., _SPAN] >= 0.5 * MIN_SPAN_S",
        HOURS,
    ),
    m(
        "hour-slew",
        "what is taken off moves slowly",
        "detectors/hours.py",
        "now + np.clip(target - now, -most, most)",
        "target",
        HOURS,
    ),
    # -- tail
    m(
        "kappa-rank",
        "the threshold of a large window is near",
        "detectors/tail.py",
        "np.nan_to_num(n) * _P + 1, 1, _RANKS",
        "np.nan_to_num(n) * 0 + 1, 1, _RANKS",
        TAIL,
    ),
    m(
        "winsor",
        "one bad window does not set the threshold",
        "detectors/tail.py",
        "np.clip(log_p999, mean - 3 * sd, mean + 3 * sd))",
        "log_p999)",
        TAIL,
    ),
    # -- dynamic SLO
    m(
        "ceiling",
        "nothing passes the contract",
        "detectors/dynamic_slo.py",
        "gain * drift)), ceiling_s)",
        "gain * drift)), np.inf)",
        DYNAMIC,
    ),
    m(
        "tightening",
        "an alarm loosens nothing",
        "detectors/dynamic_slo.py",
        "np.where(tightening, 0.0, gain * drift)",
        "gain * drift",
        DYNAMIC,
    ),
    m(
        "sign",
        "shorter requests loosen nothing",
        "detectors/dynamic_slo.py",
        "return np.asarray(sign * ",
        "return np.asarray(1.0 * ",
        DYNAMIC,
    ),
    m(
        "long-drift",
        "a drift is long after its time",
        "detectors/dynamic_slo.py",
        "return drift_s >= long_drift_s",
        "return drift_s > 0",
        LONG,
    ),
    # -- input
    m(
        "rounding",
        "rounded times are no contradiction",
        "schemas/batch.py",
        "CONTRARY_ROUNDING = np.float32(1.01), np.float32(0.01)",
        "CONTRARY_ROUNDING = np.float32(1.0), np.float32(0.0)",
        CONTRARY,
    ),
    m(
        "damage",
        "a recording that was cut off is no success",
        "streams/commands/replay.py",
        "    if inputs.damaged:",
        "    if False:",
        DAMAGED,
    ),
)
