"""The committed JSON Schemas are current, and they accept what the code accepts and writes."""

from __future__ import annotations

import json

import msgspec
import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from schemas import json_schema
from schemas.results import Decision, Finding, Rejected, Summary, Verdict, encode_line
from schemas.telemetry import GpuEvent, RequestEvent


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((json_schema.FOLDER / name).read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", sorted(json_schema.render()))
def test_committed_schemas_are_current(name: str) -> None:
    assert (json_schema.FOLDER / name).read_text() == json_schema.render()[name], "run: python -m schemas.json_schema"


@pytest.mark.parametrize(
    "result",
    [
        Verdict(t=1.0, pool="p", node="n", sli="ttft_s", status="OK", n=5, kl_nats=float("nan")),
        Finding(t=1.0, pool="p", finding="root_cause", cause="queueing", evidence={"a": [1, None]}),
        Decision(t=1.0, pool="p", scope="node", subject="n", state="OPEN", version=(1, 2, 3), tx="x"),
        Rejected(t=1.0, reason="bad_json", count=2),
        Summary(events=1, rejected=0, ticks=3),
    ],
)
def test_what_is_written_follows_the_results_schema(result: Verdict | Finding | Decision | Rejected | Summary) -> None:
    validator("results.json").validate(json.loads(encode_line(result)))


def test_telemetry_schema_tells_kinds_apart() -> None:
    check = validator("telemetry.json")
    for event in (RequestEvent(ts=1.0, pool="p", node="n", outcome="ok"), GpuEvent(ts=1.0, pool="p", node="n", gpu="g")):
        check.validate(json.loads(msgspec.json.encode(event)))
    assert not check.is_valid({"kind": "request", "ts": 1.0, "pool": "", "node": "n", "outcome": "ok"})
    assert not check.is_valid({"kind": "gpu", "ts": 1.0, "pool": "p", "node": "n"})
    assert check.is_valid({"kind": "deploy", "ts": 1.0, "pool": "p", "unknown": "is ignored"})


def test_policy_schema_accepts_a_policy_and_refuses_a_wrong_one() -> None:
    check = validator("policy.json")
    text = """
        apiVersion: slodrift/v1
        kind: Policy
        extends: seed
        pools:
          "*": {mode: enforce, slo: {ttft_s: {threshold: 1.0, objective: 0.99}}, detection: {kappa: null}}
          "a*": {slo: {ttft_s: {objective: 0.999}}}
    """
    policy = YAML(typ="safe", pure=True).load(text)
    check.validate(policy)
    assert not check.is_valid({**policy, "extends": "sead"})
    assert not check.is_valid({**policy, "pools": {"*": {"tick": 5}}})
    assert not check.is_valid({**policy, "pools": {"*": {"slo": {"ttft": {"threshold": 1}}}}})


def test_every_setting_of_the_policy_schema_is_typed() -> None:
    schema = json_schema.policy_schema()
    for name, section in schema["$defs"].items():
        for setting, info in section["properties"].items():
            assert {"type", "anyOf", "$ref", "enum"} & info.keys(), f"{name}.{setting}"
