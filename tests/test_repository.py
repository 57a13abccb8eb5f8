"""The house rules that no other tool checks: layout, sizes, words that do not belong here, and a README that is true."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from cli_help import help_of

from streams.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "detectors", "sinks", "streams", "client/slodrift_client", "bench")
MAX_LINES = 400


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def sources() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).as_posix().startswith(PACKAGES)]


def test_python_lives_where_the_layout_says() -> None:
    folders = {p.relative_to(ROOT).parts[0] for p in tracked() if p.suffix == ".py"}
    assert folders <= {"schemas", "detectors", "sinks", "streams", "client", "bench", "tests"}


def test_files_are_short_and_open_with_what_they_are() -> None:
    assert [p for p in sources() if len(text_of(p).splitlines()) > MAX_LINES] == []
    assert [p for p in sources() if not ast.get_docstring(ast.parse(text_of(p)))] == []


def exports_without_all(path: Path) -> bool:
    tree = ast.parse(text_of(path))
    public = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    names = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return bool(public) and "__all__" not in names


def test_public_modules_name_what_they_export() -> None:
    assert [p for p in sources() if not p.is_relative_to(ROOT / "bench") and exports_without_all(p)] == []


def test_detectors_are_pure() -> None:
    forbidden = {
        "time",
        "datetime",
        "random",
        "os",
        "io",
        "logging",
        "structlog",
        "asyncio",
        "threading",
        "faust",
        "confluent_kafka",
    }
    for path in (ROOT / "detectors").rglob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            assert not {m.split(".")[0] for m in modules} & forbidden, path


def test_nothing_speaks_of_anything_but_the_product() -> None:
    words = [
        "proto" + "type",
        "seed " + "document",
        r"\.\./" + "shared",
        "issue " + r"#\d",
        "TO" + "DO",
        "FIX" + "ME",
        "XX" + "X",
    ]
    paths = ["/ro" + "ot/", "/ho" + r"me/(?!slodrift)", "/Us" + "ers/", r"(?<![\w.])/wo" + "rk/", "/tmp/ve" + "nv"]
    pattern = re.compile("|".join(rf"\b{w}" if w[0].isalpha() else w for w in words) + "|" + "|".join(paths))
    found = []
    for path in tracked():
        if path.is_relative_to(ROOT / "tests/compose"):
            continue  # somebody else's text
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert found == []


def commands_of(document: str) -> list[str]:
    """Lines of code blocks that start a command of ours."""
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text_of(ROOT / document), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+#.*", "", line.removeprefix("$ ")).strip() for line in lines]


DOCUMENTS = [p.relative_to(ROOT).as_posix() for p in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_in_documents_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    for line in commands_of(document):
        if line.startswith("make "):
            assert set(line.split()[1:]) <= targets, f"{document}: {line}"


def test_make_runs_commands_that_exist() -> None:
    lines = re.findall(r"^\t\$\(BIN\)/(slodrift .*)$", text_of(ROOT / "Makefile"), re.MULTILINE)
    assert {"slodrift demo"} < set(lines)
    for line in lines:
        check_command(line, "Makefile")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_slodrift_commands_in_documents_exist(document: str) -> None:
    for line in commands_of(document):
        check_command(line, document)


def check_command(line: str, document: str) -> None:
    """A line that starts a command of ours names one that exists, with options that exist."""
    for command in line.split(" | "):
        if not (match := re.search(r"(?:^|/)slodrift ([a-z]+)(.*)", command)):
            continue
        name, rest = match[1], match[2].split(">")[0].split()
        assert name in COMMANDS, f"{document}: {line}"
        text = (help_of(name, rest[0]) if rest and re.fullmatch(r"[a-z]+", rest[0]) else "") or help_of(name)
        for option in (word.split("=")[0] for word in rest if word.startswith("--")):
            assert option in text, f"{document}: {line}: no {option}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_files_exist(document: str) -> None:
    text = text_of(ROOT / document)
    folder = (ROOT / document).parent
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (folder / target).exists(), f"{document}: {target}"
    for named in re.findall(
        r"`((?:schemas|detectors|sinks|streams|client|tests|bench|deploy|dashboards|docs)/[\w./-]+\.\w+)`", text
    ):
        assert (ROOT / named).exists(), f"{document}: {named}"


def test_readme_starts_with_the_two_commands() -> None:
    assert [line for line in commands_of("README.md") if line.startswith("make")][:2] == ["make demo", "make test"]
    assert len(text_of(ROOT / "README.md").splitlines()) <= 90


def test_every_command_of_the_program_imports() -> None:
    assert [name for name in COMMANDS if not help_of(name)] == []


def test_ci_entry_can_be_run() -> None:
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=False).returncode == 0
