"""`slodrift override` in a pool that is split into cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from schemas.cells import cell_of, cells_of
from schemas.override import verify_override
from schemas.results import Decision
from schemas.signing import Keyring
from schemas.telemetry import OverrideEvent
from streams.cli import main

POOL = "chat/eu/h100"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[OverrideEvent]:
    """Orders that were sent; each is answered, but in the last cell."""
    sent: list[OverrideEvent] = []

    def answer(settings: Any, event: OverrideEvent, wait_s: float) -> Decision | None:
        sent.append(event)
        if event.pool == f"{POOL}~3/4":
            return None
        return Decision(
            t=event.ts, pool=event.pool, scope="node", subject=event.subject, state="FORCED_OPEN", version=(1, 1, 1), tx="t"
        )

    monkeypatch.setattr("streams.commands.override.order_override", answer)
    (tmp_path / "policy.yaml").write_text(f'apiVersion: slodrift/v1\nkind: Policy\npools: {{"{POOL}": {{cells: 4}}}}\n')
    monkeypatch.setenv("SLODRIFT_POLICY_FILE", str(tmp_path / "policy.yaml"))
    return sent


def override(pool: str, subject: str, *args: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["override", pool, subject, "--state", "FORCED_OPEN", "--for", "10m", "--reason", "fan", *args])
    return int(left.value.code or 0)


def test_an_order_about_a_node_goes_to_its_cell(sent: list[OverrideEvent], capsys: pytest.CaptureFixture[str]) -> None:
    mine = cell_of(POOL, "gpu-017", 4)
    assert override(POOL, "gpu-017") == 0
    assert [event.pool for event in sent] == [mine]
    assert f"gpu-017 of {mine}" in capsys.readouterr().out
    assert override(f"{POOL}~2/4", "gpu-017") == 0, "a cell may be named"
    assert override("other", "gpu-017") == 0
    assert [event.pool for event in sent[1:]] == [f"{POOL}~2/4", "other"]


def test_an_order_about_the_pool_goes_to_all_cells_each_signed(
    sent: list[OverrideEvent], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    private = Ed25519PrivateKey.generate()
    (tmp_path / "ada.pem").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "ada.pem").chmod(0o600)
    assert override(POOL, "pool:", "--key", str(tmp_path / "ada.pem")) == 1, "one cell did not answer"
    assert sorted(event.pool for event in sent) == cells_of(POOL, 4)
    for event in sent:
        verify_override(event, Keyring([private.public_key()]))
    said = capsys.readouterr()
    assert all(f"pool: of {name}" in said.out for name in cells_of(POOL, 4)[:3])
    assert f"pool: of {POOL}~3/4" in said.err
