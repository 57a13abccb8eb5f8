"""JSON Schemas of what crosses a process boundary as JSON, committed under `schemas/json` for other languages and editors.

`python -m schemas.json_schema` rewrites them; a test fails when they are not current.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Union

import msgspec

from schemas.policy import PoolPolicy
from schemas.policy_file import API_VERSION, PRESETS
from schemas.results import Decision, Finding, Rejected, Summary, Verdict
from schemas.telemetry import Event

__all__ = ["FOLDER", "policy_schema", "render", "results_schema", "telemetry_schema"]

FOLDER = Path(__file__).parent / "json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _lines_schema(title: str, types: Any) -> dict[str, Any]:
    return {"$schema": _DIALECT, "title": title, **msgspec.json.schema(types)}


def telemetry_schema() -> dict[str, Any]:
    """Schema of one telemetry event."""
    return _lines_schema("slodrift telemetry event", Event)


def results_schema() -> dict[str, Any]:
    """Schema of one line that slodrift writes."""
    return _lines_schema("slodrift result", Union[Verdict, Finding, Decision, Rejected, Summary])


def policy_schema() -> dict[str, Any]:
    """Schema of a policy file. An entry may set a part of a section, so nothing inside an entry is required."""
    entry = PoolPolicy.model_json_schema(ref_template="#/$defs/{model}")
    defs: dict[str, Any] = entry.pop("$defs")
    for section in (entry, *defs.values()):
        section.pop("required", None)
    defs["PoolPolicy"] = entry
    return {
        "$schema": _DIALECT,
        "title": "slodrift policy file",
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": "Policy"},
            "extends": {"enum": list(PRESETS), "default": PRESETS[0]},
            "pools": {
                "description": 'Settings by pool name or glob; "*" is the base of every pool, the best other match wins over it.',
                "type": "object",
                "additionalProperties": {"$ref": "#/$defs/PoolPolicy"},
                "propertyNames": {"minLength": 1},
            },
        },
        "$defs": defs,
    }


def render() -> dict[str, str]:
    """File name to text of every schema."""
    schemas = {"telemetry.json": telemetry_schema(), "results.json": results_schema(), "policy.json": policy_schema()}
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in render().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
