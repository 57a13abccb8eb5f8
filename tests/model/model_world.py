"""The world of the protocol model: log, Redis, judges, hosts, and an attacker who may write to Redis; what must hold of all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from model_host import Host, allowed_open
from model_judge import BASE_MS, POLICY, Judge, Log, PoolModel, Tick, replayed
from model_redis import FixedLink, HostLink, JudgeLink, Server
from model_scopes import FLEET, LIMITS, OTHERS, POOL, check_scopes, dress, refusal_limit, wrong_state
from model_seen import SEEN

from detectors.breaker import BreakerRecord
from schemas.contract import Entry, build, encode
from schemas.policy import PoolPolicy
from schemas.results import Decision
from schemas.scopes import scope_of
from schemas.signing import Domain, Signer
from streams.judge.results import TickOutput
from streams.worker.decision_log import EpochRecord

__all__ = ["ATTACKS", "World"]

ATTACKS = ("unsigned", "other_key", "other_pool", "head_bit", "snapshot_bit", "mixed", "old", "cut", "oversized", "no_snapshot")
_HELD_BACK = {
    "scope cap held back": "the cap is", "scope frozen": "frozen", "latch without a place": "no place",
    "order over cap": "unsigned_override_over_cap", "bucket order over cap": "bucket_override_over_cap",
}  # fmt: skip
_HOSTS = ["h0", "h1", "h2", "h3"]
_KEY = Ed25519PrivateKey.from_private_bytes(b"\1" * 32)
_STRANGER = Signer(Ed25519PrivateKey.from_private_bytes(b"\2" * 32))
_PEM = _KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
_record = msgspec.json.Decoder(Decision | EpochRecord)
_head = msgspec.json.Decoder(dict)


class _Signer(Signer):
    """The judge's key, and a note of everything it ever signed."""

    def __init__(self, issued: set[tuple[tuple[int, int, int], int, str]]) -> None:
        super().__init__(_KEY)
        self.issued = issued

    def sign(self, domain: Domain, raw: bytes) -> bytes:
        head = _head.decode(raw)
        if head["pool"] == POOL:
            self.issued.add(((head["gen"], head["epoch"], head["seq"]), head["hb"], head["snap_sha256"]))
        return super().sign(domain, raw)


class World:
    """Args: `server`, the shared Redis; `policy`, of the pool."""

    def __init__(self, server: Server, folder: Path, policy: PoolPolicy) -> None:
        self.server, self.now = server, 0.0
        self.log = Log(policy)
        self.n = 40
        self.poisoned = False
        self.issued: set[tuple[tuple[int, int, int], int, str]] = set()
        self.signer = _Signer(self.issued)
        self.link = JudgeLink(server)
        self.zombies: list[Judge] = []
        self.active = self.start_judge(0)
        self.disk = tempfile.TemporaryDirectory(dir=folder)
        sizes = (None, 40, 40, 20)
        self.hosts = [
            Host(
                name, _HOSTS, HostLink(server), self.now_s, key=_PEM, pool_size=sizes[i], seed=i,
                folder=Path(self.disk.name) / name if i in (1, 2) else None,
            )
            for i, name in enumerate(_HOSTS)
        ]  # fmt: skip
        self._read = 0
        self.claims: list[int] = []
        self.appended: dict[tuple[tuple[int, int, int], str], list[int]] = {}

    def close(self) -> None:
        for host in self.hosts:
            SEEN.update(host.view.refused)
        SEEN["fenced"] += sum(judge.sink.refused.get("STALE", 0) for judge in (self.active, *self.zombies))
        self.disk.cleanup()

    def now_s(self) -> float:
        return self.now

    # -- what happens

    def start_judge(self, skew_ms: int) -> Judge:
        """A new owner of the partition."""
        self.link = JudgeLink(self.server)
        self.active = Judge(self.log, self.link, lambda: self.now, skew_ms, self.signer)
        return self.active

    def tick(self, tick: Tick) -> None:
        """Frames of one tick arrive."""
        self.log.ticks.append(tick)
        self.work(self.active)

    def work(self, judge: Judge) -> None:
        judge.work(self._judged)
        if judge is self.active and not judge.alive:
            self.start_judge(0)
            self.active.work(self._judged)

    def look(self, hosts: Sequence[Host] | None = None) -> None:
        for host in self.hosts if hosts is None else hosts:
            SEEN["node taken away"] += host.look()
        self.check()

    def requests(self, i: int, n: int) -> None:
        """Requests of every class and session come to a host."""
        host = self.hosts[i]
        SEEN["asked"] += bool(host.client._blocked)
        SEEN["refused"] += host.traffic.ask(host.client, self.now, n, OTHERS, host.pool_size)
        SEEN["refusal bound held"] += sum(r.overruled > 0 for r in host.client._refusals.values())

    def mislead(self, i: int, counts: Mapping[str, int], first: str, state: str, lie: str) -> None:
        """The judge itself signs a `state` that takes too much, perhaps of what it had harmlessly named in another `first`,
        perhaps with a `lie` about scopes. A process like the host's sees it, and is thrown away.
        """
        real = self.hosts[i]
        link = FixedLink(self.server, self.server.pair())
        host = Host(real.name, real.hosts, link, self.now_s, key=_PEM, pool_size=real.pool_size, folder=None, seed=real.seed)
        host.look()
        epoch, issued_ms, key = 1 << 41, BASE_MS + round(self.now * 1000), Signer(_KEY)
        if first:
            link.old = wrong_state(counts, (1, epoch, 1), issued_ms, key, first)
            host.client.look()
            assert not host.refused(), f"{host.name} refuses what is {first}"
        link.old = wrong_state(counts, (1, epoch, 2), issued_ms, key, state, lie)
        host.client.look()
        size = 100_000 if host.pool_size is None else host.pool_size * 11 // 10
        automatic, held = counts["nodes"], counts["latched"]
        if state == "FORCED_OPEN":
            automatic, held = 0, automatic + held
        scopes = {"nodes": "node", "latched": "node", "sessions": "session", "classes": "request", "pools": "pool"}
        honest = not lie or {scopes[what] for what, n in counts.items() if n} <= {lie}
        fits = (
            automatic <= allowed_open(size, 100_000, None) and held <= size // 5 and counts["sessions"] <= LIMITS.max_sessions
            and counts["classes"] <= LIMITS.max_requests and honest
        )  # fmt: skip
        taken = host.view.head is not None and host.view.head.version == (1, epoch, 2)
        assert taken == fits, f"I17: {host.name} {'takes' if taken else 'refuses'} {counts} in a pool of {size}"
        SEEN["wrong state obeyed" if taken else "wrong state refused"] += 1
        SEEN["lie about scopes refused"] += bool(lie and not taken)
        SEEN["wrong orders"] += state == "FORCED_OPEN" and taken
        if not taken or state == "FORCED_OPEN":  # a host cannot tell it from an operator's order: nodes alone are bounded
            return
        names = tuple(s for s in host.view.held if scope_of(s) != "node")
        refused = host.traffic.ask(host.client, self.now, 60, names, host.pool_size)
        assert refused <= refusal_limit(host.client, 60, host.pool_size), "a wrong judge takes a pool away"
        SEEN["wrong state bounded"] += any(r.overruled for r in host.client._refusals.values())

    def attack(self, kind: str, pick: int) -> None:
        """Somebody who may write to Redis, and has no key, does."""
        head, snapshot = self.server.pair()
        old_head, old_snapshot = self.server.seen[pick % len(self.server.seen)]
        if kind in ("unsigned", "other_key"):
            head, snapshot = forged(pick, None if kind == "unsigned" else _STRANGER, POOL)
        elif kind == "other_pool":
            head, snapshot = forged(pick, self.signer, "other/pool")
        elif kind == "head_bit" and head:
            head = _flipped(head, pick)
        elif kind == "snapshot_bit" and snapshot:
            snapshot = _flipped(snapshot, pick)
        elif kind == "mixed":
            snapshot = old_snapshot
        elif kind == "old":
            head, snapshot = old_head, old_snapshot
        elif kind == "cut" and snapshot:
            snapshot = snapshot[: pick % len(snapshot)]
        elif kind == "oversized" and snapshot:
            snapshot = snapshot + b" " * (1 << 20)
        elif kind == "no_snapshot":
            snapshot = None
        self.server.put(head, snapshot)
        self.server.pair()
        self.poisoned = True

    def restart_host(self, i: int, harm: str, pick: int) -> None:
        """A new process on the same disk, whose file somebody may have damaged; what it believes at once is at most stale."""
        host = self.hosts[i]
        path = None if host.folder is None else next(iter(host.folder.glob("*.slodrift")), None)
        saved_wall_s = None if path is None else saved_at(path)
        if path is not None and harm:
            raw = path.read_bytes() or b"\0"  # it may have been cut to nothing before
            path.write_bytes(raw[: pick % len(raw)] if harm == "cut" else _flipped(raw, pick + 400))
            if harm == "gone":
                path.unlink()
            else:
                saved_wall_s = saved_at(path)
        host.restart()
        head = host.view.head
        if head is None:
            assert not host.refused()
            return
        assert saved_wall_s is not None
        age_s = host.wall() - saved_wall_s
        assert harm not in ("cut", "gone"), "a damaged file is believed"
        assert 0.0 <= age_s <= 600.0, f"a file of {age_s} s ago is believed"
        assert host.client.decide("n0").source == "lkg"
        SEEN["from a file"] += 1
        for held in host.view.held.values():
            if held.entry.not_after_ms is not None:
                left_s = (held.entry.not_after_ms - head.issued_ms) / 1000 - age_s
                assert held.ends_at - host.clock() <= left_s + 0.001, "a restart prolongs an open"
        self.check()

    def _five_seconds(self) -> None:
        for _ in range(5):
            self.now += 1.0
            self.active.beat()
            self.look()

    def heal(self) -> None:
        """No more faults: 5 s later every host says what the log says (I16)."""
        self.server.up, self.link.fate, self.active.producer.fate = True, "", None
        if self.poisoned:  # a forged head of a high version keeps the judge out until somebody removes it
            self.server.lose_all(functions=False)
            self.poisoned = False
        for host in self.hosts:
            host.link.up, host.link.old, host.link.torn = True, None, None
        self.work(self.active)
        refused = self.active.sink.refused.get("OVER_CAP", 0)
        self._five_seconds()
        if self.active.sink.refused.get("OVER_CAP", 0) > refused:
            # Opened while Redis was away or behind, and the cap shrank since: they may not be added, hosts go by age.
            away = [d for d in self.obeyed().values() if d.scope == "node" and d.state in ("OPEN", "HALF_OPEN") and not d.latched]
            assert len(away) > allowed_open(self.log.ticks[-1].n, 20, None), "I3: the cap kept an honest state from the hosts"
            self.server.lose_all(functions=False)
            self._five_seconds()
        live = self.obeyed().values()
        wanted = {d.subject: dress(d) for d in live}
        SEEN["healed"] += 1
        words = {"shed": "refused", "fallback": "refused", "degrade": "degraded"}
        for what in {"nodes away" if d.scope == "node" else f"{d.scope} {words.get(d.action, d.action)}" for d in live}:
            SEEN[f"healed with {what}"] += 1
        for host in self.hosts:
            has = {s: dress(h.entry) for s, h in host.view.held.items()}
            if has != wanted:  # only a state with more nodes than the host's own cap may be refused, and then it says so
                status = host.client.status()
                assert status.pools[POOL].last_refusal.startswith("over_cap"), (
                    f"I16: {host.name} has {has}, the log says {wanted}"
                )
                nodes = [d for d in live if d.scope == "node"]
                automatic = [d for d in nodes if d.state in ("OPEN", "HALF_OPEN") and not d.latched]
                n = self.log.ticks[-1].n
                over = len(automatic) > allowed_open(n, 10**6, host.pool_size)
                forced = [d for d in nodes if d.latched or d.state == "FORCED_OPEN"]
                size = n if host.pool_size is None else min(n, host.pool_size * 11 // 10)
                assert over or len(forced) > max(1, size // 5), f"I16: {host.name} refuses a state within its caps"

    # -- what must hold

    def check(self) -> None:
        """Of every host, at any time."""
        self._read_log()
        probing: dict[tuple[str, tuple[int, int, int]], int] = {}
        for host in self.hosts:
            self._check_host(host)
            for subject, version, runs_out, lease in host.leases:
                if self.now < runs_out and lease._release is not None:
                    probing[subject, version] = probing.get((subject, version), 0) + 1
        for (subject, _), n in probing.items():
            assert n <= POLICY.breaker.probe_hosts, f"I6: {n} probes of {subject} at once"
            SEEN["probes at once"] += n > 1

    def _check_host(self, host: Host) -> None:
        head, now = host.view.head, host.clock()
        if head is None:
            assert not host.view.held
            assert host.client.decide("n0").source == "default"
            return
        assert (head.version, head.hb, head.snap_sha256) in self.issued, f"I17: {host.name} obeys what the judge never signed"
        for subject, held in host.view.held.items():
            entry = held.entry
            offsets = self.appended.get((entry.version, entry.tx), [])
            owner = entry.version[1]
            valid = [o for o in offsets if not any(owner < c < o and c <= head.version[1] for c in self.claims)]
            assert owner in self.claims, f"I15: nobody claimed {owner}"
            assert valid, f"I15: {host.name} obeys {entry.version} of {subject}, void or not in the log"
            if not entry.latched:
                assert held.ends_at - now <= 300.001, f"I4: {subject} is open on {host.name} for {held.ends_at - now} s"
        silent_s = self.now - host.advanced_s
        source = host.client.decide("n0").source
        assert source != "fresh" or silent_s <= 3.001, f"{host.name} calls {silent_s} s without a heartbeat fresh"
        if silent_s > 90.001:
            SEEN["forgot in time"] += any(
                h.entry.state in ("OPEN", "HALF_OPEN") and not h.entry.latched for h in host.view.held.values()
            )
            assert not host.automatic(), f"I4: {host.name} keeps {host.automatic()} away {silent_s} s after the last word"

    def _judged(self, model: PoolModel, tick: Tick, out: TickOutput, before: dict[str, BreakerRecord]) -> None:
        """Of every tick that any judge, zombies too, judges."""
        after = model.everything()
        check_scopes(model.policy, tick, out.decisions, before, after)
        for decision in out.decisions:
            SEEN[f"{decision.scope} {decision.evidence['cause']}"] += 1
            SEEN[f"{decision.scope} latched"] += decision.latched and decision.state == "OPEN"
        for what, words in _HELD_BACK.items():
            SEEN[what] += any(words in why for why in model.held_back)
        tripped = {d.subject for d in out.decisions if d.evidence["cause"] == "trip"}
        assert tripped <= {*tick.bad, *tick.faulty}, f"I14: opened without evidence: {tripped}"
        automatic = [r for r in model.records.values() if r.state in ("OPEN", "HALF_OPEN")]
        if tripped.intersection(tick.bad):
            assert len(automatic) <= allowed_open(tick.n, 20, None), "I2: the judge took too many away"
            assert len(tick.bad) < 2 or len(tick.bad) <= 0.3 * tick.n, "opens while the cause is shared"
        given_up = {d.subject for d in out.decisions if d.evidence["cause"] == "gone"}
        ordered = {name for name, _, _ in tick.orders}
        for name, was in before.items():
            if name in ordered or was.since_s is None or was.state in ("CLOSED", "DISABLED"):
                continue
            now = after[name]
            if was.state == "OPEN" and was.until_s is not None and was.until_s <= tick.t:
                assert now.state != "OPEN", f"I3: {name} is open beyond its end"
            probed_s = tick.t - was.since_s
            if was.state == "HALF_OPEN" and name in tick.good_probes - tick.bad_probes and was.probes_bad == 0 and probed_s >= 15:
                assert now.state == "CLOSED" or now.ramp == was.ramp + 1, f"I3: {name} did not get its traffic back"
            if was.state == "HALF_OPEN" and now.state == "CLOSED" and name not in given_up:
                degraded = getattr(model.policy.breaker.actions, scope_of(name)).action == "degrade"
                steps = 0 if degraded else len(POLICY.breaker.close_ramp)
                assert was.ramp == steps, f"{name} closed after {was.ramp} steps of its ramp, not {steps}"
        for decision in out.decisions:
            if decision.state in ("OPEN", "HALF_OPEN"):
                assert decision.not_after is not None, "I4: no end"
                assert decision.not_after <= tick.t + 300.001, "I4: an end too far away"

    def obeyed(self) -> dict[str, Decision]:
        """What the log says, by the rule as documented: void is what a former owner wrote after a claim."""
        state: dict[str, Decision] = {}
        epoch = -1
        for offset, raw in enumerate(self.log.records):
            record = _record.decode(raw)
            if isinstance(record, EpochRecord):
                epoch = offset
            elif record.version[1] >= epoch:
                state.pop(record.subject, None)
                if record.state != "CLOSED":
                    state[record.subject] = record
        return state

    def check_log(self) -> None:
        """I12: what counts in the log is what one judge would have said that read everything once."""
        said: dict[str, tuple[int, int, int]] = {}
        epoch = -1
        versions: dict[str, tuple[int, int, int]] = {}
        for offset, raw in enumerate(self.log.records):
            record = _record.decode(raw)
            if isinstance(record, EpochRecord):
                epoch = offset
            elif record.version[1] >= epoch:
                assert record.version >= versions.get(record.subject, (0, 0, 0)), "I1: versions went back in the log"
                versions[record.subject] = record.version
                assert said.setdefault(record.tx, record.version) == record.version, f"I12: {record.tx} was decided twice"
            else:
                SEEN["void decision"] += 1
        expected = replayed(self.log.policy, self.log.ticks[: self.active.state.next_offset or 0])
        assert list(said) == expected, "I12: the log is not what a replay gives"

    def _read_log(self) -> None:
        for offset in range(self._read, len(self.log.records)):
            record = _record.decode(self.log.records[offset])
            if isinstance(record, EpochRecord):
                self.claims.append(offset)
            else:
                self.appended.setdefault((record.version, record.tx), []).append(offset)
        self._read = len(self.log.records)


def forged(pick: int, signer: Signer | None, pool: str) -> tuple[bytes, bytes]:
    """A state that takes something away, of a version higher than any."""
    subject = (*(f"n{i}" for i in range(40)), *OTHERS)[pick % (40 + len(OTHERS))]
    entry = Entry(
        scope=scope_of(subject), subject=subject, state="OPEN", version=(1, 1 << 40, 1), tx="forged", opened_ms=BASE_MS,
        not_after_ms=BASE_MS + 60_000,
    )  # fmt: skip
    head, snapshot = build(
        fleet=FLEET,
        pool=pool,
        version=(1, 1 << 40, pick),
        entries=[entry],
        n_eligible=40,
        cap=4,
        mode="enforce",
        issued_ms=BASE_MS,
    )
    raw = encode(head)
    return (raw if signer is None else signer.sign("slodrift-head-v1", raw)), snapshot


def saved_at(path: Path) -> float | None:
    """When a last-known-good file says it was written, by the host's wall clock; None if that cannot be read."""
    try:
        return float(json.loads(path.read_bytes().partition(b"\n")[0])["saved_s"])
    except (ValueError, TypeError, KeyError):
        return None


def _flipped(raw: bytes, pick: int) -> bytes:
    place = pick % (8 * len(raw))
    changed = bytearray(raw)
    changed[place // 8] ^= 1 << (place % 8)
    return bytes(changed)
