"""Who wrote telemetry: an optional MAC of its writer on every event and frame (HMAC-SHA256, keys by HKDF, RFC 2104 and 5869).

Kafka does not stamp a producer's identity on a record, so without this whoever may write telemetry speaks for every node. A
writer is `node/<name>` (speaks for itself alone), `gateway/<name>` (speaks for any node, as gateways see them all) or `framer`.
Its key is HKDF(master, writer): a node holds its own and can make no other; the framer and the judge hold the master.

The MAC is at the very end and covers every byte before it, writer included, so what was received is verified and nothing is
encoded anew. Readers that know no key pass over the two fields:

    JSON event    {...,"mac_by":"node/gpu-017","mac":"<43 characters of base64url>"}
    frame         the same two keys as the last ones of its MessagePack map, `mac` 32 bytes

Orders of operators carry their own signature (schemas/override.py) and need none. Needs the extra `signing` (pyca/cryptography).
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Sequence

import msgspec

from schemas.errors import ConfigError, SchemaError
from schemas.frame import EventFrame, decode_frame
from schemas.telemetry import Event, OverrideEvent

__all__ = ["FRAMER", "MIN_KEY_BYTES", "Authenticator", "Fault", "Writer", "derive_key", "parse_masters"]

FRAMER = "framer"
MIN_KEY_BYTES = 32
Fault = tuple[str, str]
"""A stable word (no_mac, bad_mac, not_its_own) and a sentence."""

_KEY_INFO = b"slodrift-telemetry-key-v1\0"
_EVENT, _FRAME = b"slodrift-event-mac-v1\0", b"slodrift-frame-mac-v1\0"
_WRITER = re.compile(r"(?:node|gateway)/.{1,256}|framer", re.DOTALL)
_TAIL = re.compile(rb',"mac_by":("(?:[^"\\]|\\.)*"),"mac":"([A-Za-z0-9_-]{43})"\}\s*\Z')
_MAC_KEY = b"\xa3mac\xc4\x20"
_MAX_TAIL = 4096
_MAX_CACHED = 65_536


class _EventWho(msgspec.Struct, gc=False):
    kind: str = ""
    node: str | None = None


class _FrameWho(msgspec.Struct, gc=False):
    kind: str = ""
    node: str = ""
    origin: str | None = None
    mac_by: str = ""
    events: list[_EventWho] = []


_event_who = msgspec.json.Decoder(_EventWho).decode
_frame_who = msgspec.msgpack.Decoder(_FrameWho).decode
_event = msgspec.json.Decoder(Event).decode
_word = msgspec.json.Decoder(str).decode
_pack = msgspec.msgpack.encode


def parse_masters(text: str) -> list[bytes]:
    """Master keys: hexadecimal, with commas; the first makes keys, all verify (old ones during a rotation).

    Raises:
        ConfigError: One is no hexadecimal, or shorter than 32 bytes; its value is not shown.
    """
    masters = []
    for number, word in enumerate(text.split(","), 1):
        try:
            master = bytes.fromhex(word.strip())
        except ValueError:
            raise ConfigError(f"telemetry key {number} is not hexadecimal; make one with: openssl rand -hex 32") from None
        if len(master) < MIN_KEY_BYTES:
            raise ConfigError(f"telemetry key {number} has {len(master)} bytes, at least {MIN_KEY_BYTES} are needed")
        masters.append(master)
    return masters


def derive_key(master: bytes, writer: str) -> bytes:
    """Key of one writer, 32 bytes.

    Raises:
        ConfigError: It is no writer, or pyca/cryptography is missing.
    """
    if not _WRITER.fullmatch(writer):
        raise ConfigError(f"{writer!r} is no writer: node/NAME, gateway/NAME or framer")
    try:
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError:
        raise ConfigError("authenticated telemetry needs pyca/cryptography: pip install 'slodrift[signing]'") from None
    return HKDF(SHA256(), 32, salt=None, info=_KEY_INFO + writer.encode()).derive(master)


class Writer:
    """Seals what one writer sends.

    Args:
        name: `node/<name>`, `gateway/<name>` or `framer`.
        key: Its key, see `derive_key`.
    """

    def __init__(self, name: str, key: bytes) -> None:
        self.name = name
        self._key = key
        self._event_tail = b',"mac_by":' + msgspec.json.encode(name) + b',"mac":"'
        self._frame_tail = _pack("mac_by") + _pack(name) + _MAC_KEY

    def __repr__(self) -> str:
        return f"Writer({self.name!r})"

    def seal_event(self, raw: bytes) -> bytes:
        """A JSON event, an object with members and nothing behind it, with its MAC."""
        if not raw.endswith(b"}") or len(raw) < 3:
            raise ValueError("only a JSON object with members is sealed")
        text = raw[:-1] + self._event_tail
        return text + _base64(hmac.digest(self._key, _EVENT + text, "sha256")) + b'"}'

    def seal_frame(self, raw: bytes) -> bytes:
        """A frame with its MAC: two more keys at the end of its map."""
        if raw[:1] and raw[0] & 0xF0 == 0x80:
            n, body = raw[0] & 0x0F, raw[1:]
        elif raw[:1] == b"\xde":
            n, body = int.from_bytes(raw[1:3], "big"), raw[3:]
        else:
            raise ValueError("a frame is a MessagePack map")
        n += 2
        text = (bytes([0x80 | n]) if n < 16 else b"\xde" + n.to_bytes(2, "big")) + body + self._frame_tail
        return text + hmac.digest(self._key, _FRAME + text, "sha256")


class Authenticator:
    """Verifies what any writer sent. Pure: its answers depend on the bytes and the masters alone.

    Args:
        masters: Of `parse_masters`.
    """

    def __init__(self, masters: Sequence[bytes]) -> None:
        if not masters:
            raise ValueError("at least one master key")
        self._masters = tuple(masters)
        self._keys: dict[str, tuple[bytes, ...]] = {}

    def __repr__(self) -> str:
        return f"Authenticator({len(self._masters)} keys)"

    def writer(self, name: str) -> Writer:
        """Seals as `name` with the first master."""
        return Writer(name, self._of(name)[0])

    def event_fault(self, raw: bytes) -> Fault | None:
        """Why a JSON event is not authentic, or None. What does not decode is not either."""
        at = raw.rfind(b',"mac_by":', max(0, len(raw) - _MAX_TAIL))
        found = _TAIL.match(raw, at) if at >= 0 else None
        try:
            who = _event_who(raw)
            if who.kind == "override" and isinstance(_event(raw), OverrideEvent):  # a field may occur twice: both must say so
                return None
            if found is None:
                return "no_mac", "the event carries no MAC, and this pipeline trusts authenticated ones alone"
            name = _word(found[1])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            return "no_mac", f"it cannot be read: {exc}"[:200]
        text = _EVENT + raw[: found.start(2)]
        if not any(hmac.compare_digest(_base64(hmac.digest(key, text, "sha256")), found[2]) for key in self._of(name)):
            return "bad_mac", f"it was not written by {name!r:.80}"
        return _foreign(name, who.node)

    def frame_fault(self, raw: bytes) -> Fault | None:
        """Why a frame is not authentic, or None."""
        try:
            who = _frame_who(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            return "no_mac", f"it cannot be read: {exc}"[:200]
        if who.kind == "events" and who.events and all(event.kind == "override" for event in who.events) and _orders(raw):
            return None
        if raw[-38:-32] != _MAC_KEY:
            return "no_mac", "the frame carries no MAC, and this pipeline trusts authenticated ones alone"
        text = _FRAME + raw[:-32]
        if not any(hmac.compare_digest(hmac.digest(key, text, "sha256"), raw[-32:]) for key in self._of(who.mac_by)):
            return "bad_mac", f"it was not written by {who.mac_by!r:.80}"
        if who.origin is not None or who.mac_by == FRAMER:
            return None if who.mac_by == FRAMER else ("not_its_own", f"{who.mac_by!r:.80} writes what only the framer may")
        if who.kind != "events":
            return _foreign(who.mac_by, who.node)
        return next((fault for e in who.events if (fault := _foreign(who.mac_by, e.node))), None)

    def _of(self, name: str) -> tuple[bytes, ...]:
        keys = self._keys.get(name)
        if keys is None:
            if not _WRITER.fullmatch(name):
                return ()
            if len(self._keys) >= _MAX_CACHED:  # names that nobody has, to fill the memory
                self._keys.clear()
            keys = self._keys[name] = tuple(derive_key(master, name) for master in self._masters)
        return keys


def _orders(raw: bytes) -> bool:
    """Whether a frame holds orders of operators alone, to the reader that will obey them."""
    try:
        frame = decode_frame(raw)
    except SchemaError:
        return False
    return isinstance(frame, EventFrame) and all(isinstance(event, OverrideEvent) for event in frame.events)


def _foreign(writer: str, node: str | None) -> Fault | None:
    if writer.startswith("gateway/") or (node is not None and writer == f"node/{node}"):
        return None
    return "not_its_own", f"{writer!r:.80} speaks for {node!r:.80}; a node speaks for itself alone"


def _base64(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
