"""Policy files: what a pool gets, and that every fault is reported where it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.errors import ConfigError
from schemas.policy import PoolPolicy
from schemas.policy_file import PolicyError, load_policy, parse_policy

HEAD = "apiVersion: slodrift/v1\nkind: Policy\n"


def faults_of(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    return list(caught.value.faults)


def test_no_file_is_the_default_preset() -> None:
    policy = load_policy(None)
    assert policy.for_pool("any/pool") == PoolPolicy()
    assert len(policy.version) == 12


def test_seed_preset_has_the_published_formulas() -> None:
    seed = parse_policy(HEAD + "extends: seed\n").for_pool("x")
    assert (seed.detection.method, seed.detection.kappa, seed.detection.kl_warn_nats) == ("seed", 1.82, 0.12)
    assert seed.caps == PoolPolicy().caps, "caps are safety, not detection: every preset keeps them"


def test_settings_merge_over_the_preset_setting_by_setting() -> None:
    policy = parse_policy(HEAD + 'extends: seed\npools: {"*": {detection: {kl_periods: 5}, slo: {ttft_s: {threshold: 1}}}}')
    pool = policy.for_pool("x")
    assert (pool.detection.kl_periods, pool.detection.kappa, pool.slo["ttft_s"].threshold) == (5, 1.82, 1.0)


@pytest.mark.parametrize(
    ("pool", "tick_s"),
    [
        ("llama/eu/h100", 4.0),  # the exact name beats every glob
        ("llama/eu/a100", 3.0),  # the longer literal prefix
        ("llama/us/h100", 2.0),
        ("other/us/h100", 5.0),  # more literal text than "*h100" has
        ("other/eu/h100", 6.0),
        ("other", 1.0),
        ("LLAMA/eu/a100", 1.0),  # case-sensitive
    ],
)
def test_the_most_specific_entry_wins(pool: str, tick_s: float) -> None:
    entries = {"*": 1, "llama/*": 2, "llama/eu/*": 3, "llama/eu/h100": 4, "*/us/h100": 5, "*h100": 6}
    text = HEAD + "pools:\n" + "".join(f'  "{p}": {{tick_s: {t}}}\n' for p, t in entries.items())
    assert parse_policy(text).for_pool(pool).tick_s == tick_s


def test_the_star_entry_is_the_base_of_every_pool_and_siblings_are_not() -> None:
    text = HEAD + 'pools: {"*": {mode: enforce, slo: {e2e_s: {threshold: 30}}}, "a*": {lateness_s: 3}, "ab*": {tick_s: 2}}'
    pool = parse_policy(text).for_pool("abc")
    assert (pool.mode, pool.slo["e2e_s"].threshold, pool.tick_s, pool.lateness_s) == ("enforce", 30.0, 2.0, 10.0)


def test_version_is_of_the_content() -> None:
    one = parse_policy(HEAD + 'pools: {"*": {tick_s: 2, mode: shadow}}')
    same = parse_policy(HEAD + '# comment\npools:\n  "*":\n    mode: shadow\n    tick_s: 2\n')
    other = parse_policy(HEAD + 'pools: {"*": {tick_s: 3, mode: shadow}}')
    assert one.version == same.version != other.version
    assert one.version != parse_policy(HEAD + 'extends: seed\npools: {"*": {tick_s: 2, mode: shadow}}').version


ONE_FAULT = [
    ("apiVersion: slodrift/v2\nkind: Policy\n", 1, 13, "did you mean 'slodrift/v1'"),
    ("apiVersion: slodrift/v1\nkind: Polcy\n", 2, 7, "did you mean 'Policy'"),
    ("apiVersion: slodrift/v1\n", 1, 1, "kind is missing"),
    (HEAD + "extends: sead\n", 3, 10, "did you mean 'seed'"),
    (HEAD + "pool: {}\n", 3, 1, "did you mean 'pools'"),
    (HEAD + "mode: enforce\n", 3, 1, "below pools"),
    (HEAD + "pools: [a]\n", 3, 8, "no mapping"),
    (HEAD + "pools:\n  a:\n", 4, 3, "no mapping"),
    (HEAD + "pools:\n  a: {tick: 5}\n", 4, 7, "did you mean 'tick_s'"),
    (HEAD + "pools:\n  a: {open_s: 5}\n", 4, 7, "did you mean 'breaker.open_s'"),
    (HEAD + "pools:\n  a:\n    slo:\n      ttft: {threshold: 1}\n", 6, 7, "did you mean 'ttft_s'"),
    (HEAD + "pools:\n  a: {slo: {e2e_s: {threshold: 1, objective: 99.9}}}\n", 4, 46, "did you mean 0.999?"),
    (HEAD + "pools:\n  a: {slo: {e2e_s: {threshold: 1, objective: 1}}}\n", 4, 46, "no error budget"),
    (HEAD + "pools:\n  a: {slo: {e2e_s: {threshold: 5000}}}\n", 4, 32, "did you mean 5?"),
    (HEAD + "pools:\n  a: {slo: {e2e_s: {}}}\n", 4, 20, "threshold is missing"),
    (HEAD + "pools:\n  a: {tick_s: 500ms}\n", 4, 15, "must be a number (seconds), write 0.5"),
    (HEAD + 'pools:\n  a: {tick_s: "5"}\n', 4, 15, "write 5"),
    (HEAD + "pools:\n  a: {tick_s: true}\n", 4, 15, "must be a number"),
    (HEAD + "pools:\n  a: {tick_s: .nan}\n", 4, 15, "finite"),
    (HEAD + "pools:\n  a: {tick_s: 0.1}\n", 4, 15, "at least 1"),
    (HEAD + "pools:\n  a: {caps: {absolute: 2.5}}\n", 4, 24, "whole number"),
    (HEAD + "pools:\n  a: {mode: Enforce}\n", 4, 13, "did you mean 'enforce'"),
    (HEAD + "pools:\n  a: {breaker: {open_s: 400}}\n", 4, 25, "breaker.open_max_s is 300"),
    (HEAD + "pools:\n  a: {detection: {method: seed}}\n", 4, 27, "kappa: 1.82"),
    (HEAD + "pools:\n  a: {inventory: []}\n", 4, 18, "inventory is empty"),
    (HEAD + "pools:\n  a: {inventory: [n1, n1]}\n", 4, 18, "twice"),
    (HEAD + "pools:\n  a: {inventory: [n1, 2]}\n", 4, 23, "must be text"),
    (HEAD + "pools:\n  a: {health: 3}\n", 4, 15, "must be a mapping"),
    (HEAD + "pools:\n  a: {tick_s: 2, tick_s: 3}\n", 4, 18, "duplicate"),
    (HEAD + "pools:\n  a: {}\n  a: {}\n", 5, 3, "line 4 has it already"),
    (HEAD + "pools:\n  *: {}\n", 4, 3, '"*"'),
    (HEAD + "pools:\n\ta: {}\n", 4, 1, "tab"),
    (HEAD + "pools: {a: {tick_s: 2}\n", 4, 1, "close the bracket"),
    (HEAD + "pools:\n  a: {mode: !!python/name:os.system x}\n", 4, 13, "tag"),
    ("", 1, 1, "empty"),
    ("# a comment\n", 1, 1, "empty"),
    ("- a\n", 1, 1, "not a mapping"),
    (HEAD + "---\nkind: Policy\n", 3, 1, "one document"),
    (HEAD + 'pools: {a: {mode: "\x01"}}\n', 3, 20, "control character"),
]


@pytest.mark.parametrize(("text", "line", "col", "words"), ONE_FAULT)
def test_fault_is_reported_where_it_stands(text: str, line: int, col: int, words: str) -> None:
    faults = faults_of(text)
    assert any(f.startswith(f"p.yaml:{line}:{col}: ") and words in f for f in faults), faults


def test_all_faults_come_in_one_pass_and_in_file_order() -> None:
    entry = "{mode: on, tick_s: 0, breaker: {open_s: 400, close_ratio: 95}, x: 1, x: 2}"
    text = HEAD + f'extends: sead\npools:\n  "*": {entry}\n  b: {{mode: shadow}}\n  c: 3\n'
    found = [f.split(":")[1:3] for f in faults_of(text)]
    assert [int(line) for line, _ in found] == [3, 5, 5, 5, 5, 5, 5, 7]
    assert found == sorted(found, key=lambda at: (int(at[0]), int(at[1])))


def test_a_fault_of_the_base_is_not_repeated_for_every_pool() -> None:
    assert (
        len(faults_of(HEAD + 'pools:\n  "*": {breaker: {open_s: 400, close_ratio: 95}}\n  a: {breaker: {max_opens: 2}}\n')) == 2
    )


def test_an_entry_that_clashes_with_the_base_is_reported_at_the_entry() -> None:
    (fault,) = faults_of(HEAD + 'pools:\n  "*": {breaker: {open_s: 100}}\n  a: {breaker: {open_max_s: 50}}\n')
    assert fault.startswith("p.yaml:5:29: ")


def test_alias_bomb_and_self_reference_end_with_a_fault() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert any("aliases multiply" in f for f in faults_of(bomb))
    assert any("contains itself" in f for f in faults_of("pools: &x {a: *x}\n"))


def test_merge_keys_share_settings() -> None:
    text = HEAD + 'pools:\n  "a": &a {tick_s: 2, mode: advise}\n  "b": {<<: *a, mode: enforce}\n'
    assert (parse_policy(text).for_pool("b").tick_s, parse_policy(text).for_pool("b").mode) == (2.0, "enforce")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_policy(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(HEAD.encode() + b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:3:6: not UTF-8"):
        load_policy(tmp_path / "latin.yaml")
    (tmp_path / "bom.yaml").write_text(HEAD, encoding="utf-8-sig")
    assert load_policy(tmp_path / "bom.yaml").for_pool("x") == PoolPolicy()


_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
_names = st.sampled_from([*PoolPolicy.model_fields, *PoolPolicy().breaker.model_dump(), "ttft_s", "threshold", "zz", ""])
_trees = st.recursive(
    _scalars, lambda t: st.one_of(st.lists(t, max_size=3), st.dictionaries(_names, t, max_size=4)), max_leaves=12
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["*", "a", "a*", ""]), _trees, max_size=3))
def test_any_tree_gives_a_policy_or_located_faults(pools: dict[str, object]) -> None:
    text = HEAD + "pools: " + json.dumps(pools).replace("NaN", ".nan").replace("-Infinity", "-.inf").replace("Infinity", ".inf")
    faults: tuple[str, ...] = ()
    try:
        parse_policy(text, "p").for_pool("a")
    except PolicyError as exc:
        faults = exc.faults
    assert all(f.startswith("p:") and f.split(":")[1].isdigit() for f in faults)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60))
@example("a: 1" + "0" * 5000)
@example("[" * 3000)
@example("? [a]\n: b")
@example("<<: 3")
def test_any_text_raises_nothing_but_policy_errors(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_policy(text)
