"""Detectors of river in a policy: what is wrong with them is said when the policy is read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from schemas.policy_extra import make_detector
from schemas.policy_file import PolicyError, parse_policy

HEAD = 'apiVersion: slodrift/v1\nkind: Policy\npools:\n  "*":\n    detection:\n      extra:\n        - '


def test_a_detector_is_made_as_the_policy_says() -> None:
    policy = parse_policy(HEAD + "{river: drift.ADWIN, on: mean_log_latency, delta: 0.01}")
    (extra,) = policy.for_pool("p").detection.extra
    assert (extra.river, extra.on, extra.name) == ("drift.ADWIN", "mean_log_latency", "drift.ADWIN:mean_log_latency")
    assert make_detector(extra).delta == 0.01


def test_random_detectors_repeat_themselves() -> None:
    policy = parse_policy(HEAD + "{river: drift.KSWIN, on: n}")
    (extra,) = policy.for_pool("p").detection.extra
    assert make_detector(extra).seed == 0


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{river: drift.AWDIN, on: n}", "0.river: unknown river detector 'drift.AWDIN', did you mean 'drift.ADWIN'"),
        ("{river: drift.ADWIN, on: p99}", "did you mean 'p99_log'"),
        ("{river: drift.ADWIN, on: n, dleta: 0.1}", "of drift.ADWIN, nothing would read it, did you mean 'delta'"),
        ("{river: drift.NoDrift, on: n, dleta: 0.1}", "it takes none"),
        ("{river: drift.KSWIN, on: n, alpha: 3}", "Alpha must be between 0 and 1"),
        ("{river: drift.KSWIN, on: n, window_size: 10.5}", "window_size of drift.KSWIN is 10.5, it must be a whole number"),
        ("{river: drift.ADWIN, on: n, delta: fine}", "delta of drift.ADWIN is 'fine', it must be a number"),
        ("{river: drift.binary.DDM, on: n}", "write on: error_ratio"),
        ("{river: drift.binary.DDM, on: error_ratio, warm_start: [1]}", "it must be a whole number"),
        ("{river: drift.DriftRetrainingClassifier, on: n}", "unknown river detector"),
        ("{on: n}", "detection.extra.0.river is missing"),
        ("drift.ADWIN", "it must be a mapping"),
    ],
)  # fmt: skip
def test_faults_say_what_to_do(entry: str, told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(HEAD + entry, "f.yaml")
    (fault,) = caught.value.faults
    assert told in fault
    assert fault.startswith("f.yaml:7:")


def test_river_is_imported_only_when_it_is_named() -> None:
    code = (
        "import sys; from schemas.policy_file import load_policy; load_policy(None).for_pool('p'); print('river' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
