import numpy as np
import pytest

from detectors.expected import expected_log2, fit
from schemas.batch import UNKNOWN_TOKENS


def requests(n, seed=0, median=550):
    rng = np.random.default_rng(seed)
    tokens = rng.lognormal(np.log(median), 0.7, n).astype(np.uint32)
    output = rng.lognormal(np.log(100), 0.6, n).astype(np.uint32)
    noise = np.exp(rng.normal(0, 0.25, (4, n)))
    ttft = (0.05 + 1.8e-4 * tokens) * noise[0]
    tpot = 0.018 * noise[1]
    queue = 0.004 * noise[2]
    return np.stack([ttft, tpot, queue, ttft + output * tpot]).astype(np.float32), tokens, output


def test_affine_latencies_are_recovered():
    latency, tokens, output = requests(4000)
    a, b, c = fit(latency, tokens, output)[0]
    assert a == pytest.approx(0.05, rel=0.1)
    assert b == pytest.approx(1.8e-4, rel=0.05)
    assert c == 0


def test_what_does_not_depend_on_size_gets_no_trend():
    latency, tokens, output = requests(2000)
    assert (fit(latency, tokens, output)[1:3, 1:] == 0).all()


def test_a_sevenfold_shift_of_prompt_length_leaves_the_ratio_alone():
    latency, tokens, output = requests(2400)
    coefficients = fit(latency, tokens, output)
    ratios = []
    for median in (550, 4000):
        latency, tokens, output = requests(20_000, seed=1, median=median)
        ratios.append((np.log2(latency) - expected_log2(coefficients, tokens, output)).mean(axis=1) * np.log(2))
    assert np.abs(ratios[1] - ratios[0]).max() < 0.03
    raw = [np.log(requests(20_000, 1, m)[0][0]).mean() for m in (550, 4000)]
    assert raw[1] - raw[0] > 1.3


def test_a_few_stalled_requests_do_not_rule_the_fit():
    latency, tokens, output = requests(3000)
    latency[0, ::100] = 60.0
    assert fit(latency, tokens, output)[0, 1] == pytest.approx(1.8e-4, rel=0.15)


def test_unknown_sizes_and_missing_latencies():
    latency, tokens, output = requests(500)
    latency[3] = np.nan
    tokens[:] = UNKNOWN_TOKENS
    output[:] = UNKNOWN_TOKENS
    coefficients = fit(latency, tokens, output)
    expected = expected_log2(coefficients, tokens, output)
    assert np.isfinite(expected).all()
    assert expected[0, 0] == pytest.approx(np.log2(np.median(latency[0])), abs=0.3)


def test_one_request_is_enough_to_be_defined():
    latency, tokens, output = requests(1)
    assert np.isfinite(expected_log2(fit(latency, tokens, output), tokens, output)).all()
