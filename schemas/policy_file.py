"""Reading a policy file: which settings a pool gets, and every fault of the file in one pass.

Resolution for a pool, weakest first: the built-in defaults of `schemas.policy`, the preset named by `extends`, the entry `"*"`
of the file (the base of every pool), and on top of that the one other entry that matches best. Best is: the exact name; else
the longest literal text before the first wildcard; else the most literal characters; else the entry that comes first.
Globs are those of `fnmatch` (`*`, `?`, `[...]`), case-sensitive; `*` also matches `/`. Mappings merge setting by setting. A cell
(`schemas.cells`) has the settings of its pool, with its part of the caps.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.resources
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from schemas.cell_policy import cell_policy
from schemas.cells import Cell, parent_of, split
from schemas.errors import ConfigError
from schemas.policy import PoolPolicy
from schemas.policy_faults import cross_faults, did_you_mean, explain
from schemas.yaml_tree import Fault, Path, Tree, parse_yaml

__all__ = ["API_VERSION", "PRESETS", "Policy", "PolicyError", "load_policy", "parse_policy", "preset_settings"]

API_VERSION = "slodrift/v1"
PRESETS = ("default", "seed")
BASE = "*"
_TOP = ("apiVersion", "kind", "extends", "pools")


class PolicyError(ConfigError):
    """A policy file is wrong.

    Attributes:
        faults: One text per fault, `file:line:col: what, why, what to do`, in the order of the file.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__(faults[0] if len(faults) == 1 else f"{len(faults)} faults\n" + "\n".join(faults))
        self.faults = tuple(faults)


class Policy:
    """A valid policy.

    Attributes:
        version: Short hash of the settings; comments, order and spelling of a file do not change it.
        extends: Name of the preset.
        source: File name, or `preset NAME`.
        pools: Entries of the file as plain settings.
        tree: Positions of the entries in the file, None for a bare preset.
    """

    def __init__(self, extends: str, pools: Mapping[str, Any], source: str, tree: Tree | None = None) -> None:
        self.extends = extends
        self.pools = dict(pools)
        self.source = source
        self.tree = tree
        content = json.dumps([preset_settings(extends), self.pools], sort_keys=True)
        self.version = hashlib.sha256(content.encode()).hexdigest()[:12]
        self._cache: dict[tuple[tuple[str, ...], Cell | None], PoolPolicy] = {}

    def entries_for(self, pool: str) -> tuple[str, ...]:
        """Entries of the file that shape `pool`, weakest first: none, `"*"`, the best other match, or both."""
        pool = parent_of(pool)
        others = [(_rank(pattern, pool), pattern) for pattern in self.pools if pattern != BASE and _matches(pattern, pool)]
        best = (max(others, key=lambda pair: pair[0])[1],) if others else ()
        return ((BASE,) if BASE in self.pools else ()) + best

    def for_pool(self, pool: str) -> PoolPolicy:
        """Effective settings of `pool`, which may be a cell; the same object for pools with the same settings."""
        cell, entries = split(pool), self.entries_for(pool)
        key = entries, None if cell is None else cell._replace(pool="")
        if key not in self._cache:
            settings = _validated(_merge(preset_settings(self.extends), *(self.pools[e] for e in entries)))
            self._cache[key] = settings if cell is None else cell_policy(settings, cell)
        return self._cache[key]

    def cells_of(self, pool: str) -> int:
        """How many cells `pool` is split into; 1 for most, and for a cell."""
        return self.for_pool(pool).cells


def load_policy(path: str | FilePath | None) -> Policy:
    """The policy in the file `path`; None gives the preset `default`.

    Raises:
        PolicyError: The file cannot be read or has faults; it carries all of them.
    """
    if path is None:
        return Policy("default", {}, "preset default")
    try:
        raw = FilePath(path).read_bytes()
    except OSError as exc:
        raise PolicyError([f"{path}: cannot be read, {exc.strerror or exc}, check the name and its permissions"]) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        col = exc.start - (raw.rfind(b"\n", 0, exc.start) + 1) + 1
        raise PolicyError([f"{path}:{line}:{col}: not UTF-8 text, YAML is UTF-8, save the file as UTF-8"]) from None
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str = "<policy>") -> Policy:
    """The policy in `text`; `name` stands before each position in faults.

    Raises:
        PolicyError: With all faults.
    """
    tree = parse_yaml(text)
    faults = list(tree.faults)
    if tree.value is None and not faults:
        faults.append(Fault(1, 1, f"the file is empty, a policy needs a head, start with 'apiVersion: {API_VERSION}'"))
    elif tree.value is not None and not isinstance(tree.value, dict):
        faults.append(Fault(1, 1, f"the file is not a mapping, settings have names, start with 'apiVersion: {API_VERSION}'"))
    elif isinstance(tree.value, dict):
        faults += _head_faults(tree)
        faults += _pool_faults(tree)
    if faults:
        raise PolicyError([f"{name}:{f.line}:{f.col}: {f.text}" for f in sorted(set(faults))])
    return Policy(tree.value.get("extends", "default"), tree.value.get("pools", {}), name, tree)


def _head_faults(tree: Tree) -> list[Fault]:
    top: dict[str, Any] = tree.value
    faults = []
    for key in top:
        if key not in _TOP:
            hint = did_you_mean(key, list(_TOP))
            if key in PoolPolicy.model_fields:
                hint = f'it belongs to a pool, move it below pools: "*": {key}'
            at = tree.where((key,), key=True)
            faults.append(Fault(*at, f"unknown key {key!r}, nothing would read it, {hint}"))
    for key, allowed in (("apiVersion", (API_VERSION,)), ("kind", ("Policy",)), ("extends", PRESETS)):
        if key not in top:
            if key != "extends":
                faults.append(Fault(1, 1, f"{key} is missing, it tells how to read the file, add '{key}: {allowed[0]}'"))
        elif top[key] not in allowed:
            shown = "empty" if top[key] is None else repr(top[key])
            hint = did_you_mean(str(top[key]), list(allowed))
            faults.append(Fault(*tree.where((key,)), f"{key} is {shown}, this version reads {' or '.join(allowed)}, {hint}"))
    return faults


def _pool_faults(tree: Tree) -> list[Fault]:
    top = tree.value
    if "pools" not in top:
        return []
    pools = top["pools"]
    if not isinstance(pools, dict):
        return [Fault(*tree.where(("pools",)), 'pools is no mapping, it names pools or globs, write pools: {"*": {}}')]
    extends = top.get("extends", "default")
    preset = preset_settings(extends if extends in PRESETS else "default")
    base = pools[BASE] if isinstance(pools.get(BASE), dict) else {}
    base_texts = {text for _, text in cross_faults(_effective(preset, base))}
    faults = []
    for pattern, entry in pools.items():
        path: Path = ("pools", pattern)
        if not pattern:
            faults.append(Fault(*tree.where(path, key=True), 'the pool name is empty, no pool has it, write a name or "*"'))
        if isinstance(pattern, str) and split(pattern) is not None:
            text = f"entry {pattern!r} is a cell, which has the settings of its pool, write them below {parent_of(pattern)!r}"
            faults.append(Fault(*tree.where(path, key=True), text))
        if not isinstance(entry, dict):
            text = f"entry {pattern!r} is no mapping, it holds settings, write 'mode: shadow' below it or remove it"
            faults.append(Fault(*tree.where(path), text))
            continue
        settings = _merge(preset, base, entry)
        faults += _setting_faults(tree, path, settings, entry)
        for paths, text in cross_faults(_effective(settings)):
            if pattern == BASE or text not in base_texts:
                here = next((p for p in paths if _sets(entry, p)), ())
                faults.append(Fault(*tree.where((*path, *here)), text))
    return faults


def _setting_faults(tree: Tree, path: Path, settings: dict[str, Any], entry: dict[str, Any]) -> list[Fault]:
    try:
        _validated(settings)
    except ValidationError as exc:
        faults = []
        for error in exc.errors(include_url=False):
            loc = tuple(p for p in error["loc"] if p != "[key]")
            inherited = not _sets(entry, loc[:-1] if error["type"] == "missing" else loc)
            if not inherited:  # else the base got it wrong and it is reported there, once
                at = tree.where((*path, *loc), key=error["type"] == "extra_forbidden" or "[key]" in error["loc"])
                faults.append(Fault(*at, explain(error, tuple(error["loc"]))))
        return faults
    return []


def _effective(*layers: Mapping[str, Any]) -> dict[str, Any]:
    return _merge(PoolPolicy().model_dump(), *layers)


def _sets(entry: Any, path: Path) -> bool:
    """True when `entry` itself has a value at `path`."""
    for part in path:
        if not (part in entry if isinstance(entry, dict) else isinstance(entry, list) and part in range(len(entry))):
            return False
        entry = entry[part]
    return True


def _validated(settings: dict[str, Any]) -> PoolPolicy:
    # Through JSON, because strict validation takes a list for a tuple only there; strict, because `true` is no number.
    return PoolPolicy.model_validate_json(json.dumps(settings), strict=True)


def _merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


@cache
def preset_settings(name: str) -> dict[str, Any]:
    """Settings that the preset `name` writes down; the rest are built-in defaults."""
    text = importlib.resources.files("schemas").joinpath("policies", f"{name}.yaml").read_text(encoding="utf-8")
    settings: dict[str, Any] = parse_yaml(text).value["pools"][BASE]
    return settings


def _matches(pattern: str, pool: str) -> bool:
    return pattern == pool or fnmatch.fnmatchcase(pool, pattern)


def _rank(pattern: str, pool: str) -> tuple[bool, int, int]:
    prefix = re.match(r"[^*?\[]*", pattern)
    literals = re.sub(r"\[[^\]]*\]|[*?]", "", pattern)
    return pattern == pool, len(prefix[0]) if prefix else 0, len(literals)
