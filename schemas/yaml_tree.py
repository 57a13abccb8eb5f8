"""YAML text to plain values that remember where they stood, with every fault of the text in one list.

ruamel.yaml composes the node graph (YAML 1.2); values are built here, because its own constructors stop at the first
duplicate key and keep positions only for block style.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

__all__ = ["Fault", "Path", "Tree", "parse_yaml"]

Path = tuple[str | int, ...]
MAX_NODES = 100_000  # aliases may multiply a small file without bound
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True, order=True)
class Fault:
    """One fault; `line` and `col` count from 1, `text` says what, why and what to do."""

    line: int
    col: int
    text: str


@dataclass
class Tree:
    """A parsed document.

    Attributes:
        value: Plain dicts, lists and scalars; keys are strings.
        at: Position (line, col from 1) of the value at a path.
        key_at: Position of the key at a path.
        faults: What was wrong with the text itself.
    """

    value: Any = None
    at: dict[Path, tuple[int, int]] = field(default_factory=dict)
    key_at: dict[Path, tuple[int, int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def where(self, path: Path, *, key: bool = False) -> tuple[int, int]:
        """Position of `path`, or of its nearest ancestor that stands in the text."""
        if key and path in self.key_at:
            return self.key_at[path]
        while path and path not in self.at:
            path = path[:-1]
        return self.at.get(path, (1, 1))


class _Builder:
    def __init__(self, yaml: YAML, tree: Tree) -> None:
        self.constructor = yaml.constructor
        self.tree = tree
        self.nodes = 0

    def fault(self, node: Node, text: str) -> None:
        self.tree.faults.append(Fault(node.start_mark.line + 1, node.start_mark.column + 1, text))

    def build(self, node: Node, path: Path, above: tuple[Node, ...] = ()) -> Any:
        self.tree.at[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.nodes += 1
        if any(node is n for n in above):
            self.fault(node, "this alias contains itself, a setting cannot do that, write the value out")
            return None
        if self.nodes > MAX_NODES:
            if self.nodes == MAX_NODES + 1:
                self.fault(node, f"more than {MAX_NODES} values, aliases multiply this file, write the values out")
            return None
        if isinstance(node, MappingNode):
            return self._mapping(node, path, (*above, node))
        if isinstance(node, SequenceNode):
            return [self.build(n, (*path, i), (*above, node)) for i, n in enumerate(node.value)]
        return self._scalar(node)

    def _scalar(self, node: Node) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        if kind in ("str", "timestamp", "value", "merge"):
            return node.value
        if kind not in ("int", "float", "bool", "null"):
            self.fault(node, f"tag {node.tag} is not used in a policy, only plain values are read, remove the tag")
            return None
        try:
            return self.constructor.construct_object(node)
        except (ValueError, YAMLError):  # a number too long for Python
            return node.value

    def _mapping(self, node: MappingNode, path: Path, above: tuple[Node, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, ScalarNode):
                self.fault(key, "this key is a list or a mapping, settings have names, write a plain word")
                continue
            if key.tag == _TAG + "merge":
                below = self.build(item, (*path, "<<"), above)
                for part in below if isinstance(below, list) else [below]:
                    merged = {**(part if isinstance(part, dict) else {}), **merged}
                continue
            name = str(key.value)
            here = (*path, name)
            if name in values:
                first = self.tree.key_at[here][0]
                self.fault(key, f"key {name!r} is a duplicate, line {first} has it already, keep one of the two")
                self.build(item, (*here, "<duplicate>"), above)  # its own faults still count
                continue
            self.tree.key_at[here] = (key.start_mark.line + 1, key.start_mark.column + 1)
            values[name] = self.build(item, here, above)
            if values[name] is None:  # nothing was written: an empty value stands where the next line starts
                self.tree.at[here] = self.tree.key_at[here]
        return {**merged, **values}


def parse_yaml(text: str) -> Tree:
    """Parse one YAML document; never raises on account of the text, `faults` says what is wrong. Empty text gives None."""
    tree = Tree()
    tabs = [i for i, line in enumerate(text.splitlines(), 1) if re.match(r" *\t+ *[^\s#]", line)]
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        if node is not None:
            tree.value = _Builder(yaml, tree).build(node, ())
    except MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        line, col = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        if line in tabs:
            tree.faults += [Fault(t, 1, "tab in the indentation, YAML allows spaces only, replace it by spaces") for t in tabs]
        else:
            tree.faults.append(Fault(line, col, f"not YAML, {_syntax(exc)}"))
    except ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        col = exc.position - (text.rfind("\n", 0, exc.position) + 1) + 1
        tree.faults.append(Fault(line, col, "control character, YAML text has none, remove it"))
    except YAMLError as exc:
        tree.faults.append(Fault(1, 1, f"not YAML, {exc}, check the file"))
    except RecursionError:
        tree.faults.append(Fault(1, 1, "nested too deeply, a policy has at most five levels, check the brackets"))
    return tree


def _syntax(exc: MarkedYAMLError) -> str:
    problem = str(exc.problem or "the text ends too early").replace("\n", " ")
    if "another document" in problem:
        return "a policy file holds one document, remove what follows '---'"
    if "mapping values are not allowed here" in problem:
        return "a key cannot stand here, check the indentation and quote values that contain ': '"
    if "expected ',' or" in problem:
        return f"{problem}, close the bracket or brace or add the comma"
    if "undefined alias" in problem:
        return f'{problem}, define it with & before, or quote a glob that starts with *: "*"'
    if "expected alphabetic or numeric character" in problem:
        return 'a glob that starts with * must be quoted, write "*":'
    return f"{problem}, check this line and the one above it"
