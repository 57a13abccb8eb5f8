"""The decision protocol as a whole under every fault of its parts, in any order (invariants I1 to I18 of the design).

Real are the log's rules, taking over, projection, sink, the function library on a real server, signatures, and the client with
its last-known-good file. The model's clock is its own.

SLODRIFT_MODEL=short (the default), ci, or examples x steps such as 2000x100. `make model` runs 20,000 x 50 in several processes
(model_long.py).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as driver
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from model_judge import Tick, read_log
from model_redis import Server
from model_scopes import FLEET, OTHERS, POLICIES, POOL, SESSIONS
from model_seen import SEEN, rare
from model_world import ATTACKS, World

from schemas.policy import PoolPolicy
from schemas.redis_keys import PoolKeys
from schemas.scopes import POOL_SUBJECT
from streams.embedded.redis_server import RedisServer
from streams.worker import outputs, projector, takeover

pytestmark = pytest.mark.embedded

SIZES = {"mutant": (60, 50), "short": (100, 50), "ci": (500, 50)}
_TOLD = 1000

SEATS = tuple(f"n{i}" for i in range(40))
FLAPS = ((0.0, "trip"), (45.0, "good"), (20.0, "good"), (20.0, "good"), (20.0, "good"), (65.0, "trip"))
STORIES = (
    FLAPS,
    ((0.0, "trip"), (45.0, "good"), (20.0, "good"), (20.0, "bad")),  # it fails again while its traffic comes back
    ((0.0, "trip"), (45.0, ""), (130.0, "")),  # too few ask for a verdict
    ((0.0, "trip"), (45.0, ""), (620.0, "")),  # nobody asks any more
)
nodes = st.sampled_from(SEATS)
few_nodes = st.sampled_from(SEATS[:6])
others = st.lists(st.sampled_from((*OTHERS, POOL_SUBJECT, POOL_SUBJECT)), max_size=3, unique=True).map(tuple)
some_others = st.lists(st.sampled_from((*OTHERS, *3 * (POOL_SUBJECT,))), min_size=1, max_size=4, unique=True).map(tuple)
few = st.lists(few_nodes, max_size=3, unique=True).map(tuple)
some = st.lists(few_nodes, min_size=1, max_size=3, unique=True).map(tuple)
host = st.integers(0, 3)
pick = st.integers(0, 1 << 20)


class Protocol(RuleBasedStateMachine):
    server: Server
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.server.client.flushall()
        self.server.load_library()
        self.orders: dict[str, tuple[str, float]] = {}
        self.saved_poisoned = False

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: PoolPolicy) -> None:
        self.world = World(Server(self.server.client, self.server.keys), self.folder, policy)

    # -- ordinary life

    @rule(bad=few, good=st.booleans(), failing=st.booleans(), silent=st.sampled_from((0, 0, 0, 1, 8)))
    def tick(self, bad: tuple[str, ...], good: bool, failing: bool, silent: int) -> None:
        self._tick(bad, good, failing, silent)

    @rule(bad=few)
    def a_node_is_bad(self, bad: tuple[str, ...]) -> None:
        self._tick(bad, True, False, 0)

    @rule(faulty=others, good=st.booleans(), failing=st.booleans(), silent=st.sampled_from((0, 0, 0, 8)))
    def classes_or_sessions_are_bad(self, faulty: tuple[str, ...], good: bool, failing: bool, silent: int) -> None:
        self._tick((), good, failing, silent, faulty)

    @rule(node=nodes, other=st.sampled_from((*OTHERS, POOL_SUBJECT)), waited_s=st.sampled_from((20.0, 40.0, 70.0, 130.0, 620.0)),
          answers=st.sampled_from(("good", "bad", "none")))  # fmt: skip
    def a_tick_later(self, node: str, other: str, waited_s: float, answers: str) -> None:
        self._beats(waited_s)
        self._tick((node,), answers == "good", answers == "bad", 0, (other,))

    @rule(bad=some, faulty=some_others, story=st.sampled_from((FLAPS, *STORIES)))
    def some_go_through(self, bad: tuple[str, ...], faulty: tuple[str, ...], story: tuple[tuple[float, str], ...]) -> None:
        """What takes many ticks in a row, and would hardly ever come about by chance."""
        for waited_s, what in story:
            self._beats(waited_s)
            self._tick(bad if what == "trip" else (), what == "good", what == "bad", 0, faulty if what == "trip" else ())

    @rule(i=host, n=st.sampled_from((3, 20, 60)), bursts=st.sampled_from((1, 1, 4)))
    def requests_come(self, i: int, n: int, bursts: int) -> None:
        for _ in range(bursts):
            self.world.requests(i, n)
            self.world.now += 4.0 * (bursts > 1)

    @rule(times=st.integers(1, 4))
    def heartbeats(self, times: int) -> None:
        for _ in range(times):
            self.world.now += 1.0
            self.world.active.beat()
            self.world.look()

    @rule(seconds=st.sampled_from((4.0, 6.0, 45.0, 100.0, 400.0)))
    def silence(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.check()

    @rule(i=host)
    def one_host_looks(self, i: int) -> None:
        self.world.look([self.world.hosts[i]])

    @rule(n=st.sampled_from((2, 5, 15, 30, 40, 100)))
    def pool_changes_its_size(self, n: int) -> None:
        self.world.n = n
        self._tick((), True, False, 0)

    @rule(subject=few_nodes | st.sampled_from((*OTHERS, POOL_SUBJECT)), length_s=st.sampled_from((20.0, 3000.0)),
          cause=st.sampled_from(("force_open", "disable", "release")))  # fmt: skip
    def operator_orders(self, subject: str, cause: str, length_s: float) -> None:
        self.orders[subject] = cause, length_s

    @rule(n=st.integers(2, 5), of=st.sampled_from((SESSIONS, SEATS, OTHERS[::-1])),
          cause=st.sampled_from(("force_open", "force_open", "disable", "release")))  # fmt: skip
    def operators_order_many(self, n: int, of: tuple[str, ...], cause: str) -> None:
        self.orders |= dict.fromkeys(of[:n], (cause, 3000.0))

    @rule(asking=st.sets(host, min_size=1))
    def probe(self, asking: set[int]) -> None:
        for i in asking:
            for subject, state in self.world.hosts[i].not_closed().items():
                if state == "HALF_OPEN":
                    SEEN["probe"] += self.world.hosts[i].probe(subject)
        self.world.check()

    @rule(i=host)
    def probes_answer(self, i: int) -> None:
        for *_, lease in self.world.hosts[i].leases:
            lease.release()
        self.world.hosts[i].leases = []
        assert self.world.hosts[i].in_flight() == 0, "I6: a slot did not come back"

    # -- judges

    @rule()
    def judge_writes_a_snapshot(self) -> None:
        self.world.active.save()

    @rule(skew_s=st.sampled_from((0, -3600, 3600)))
    def judge_crashes(self, skew_s: int) -> None:
        self.world.start_judge(1000 * skew_s)
        SEEN["scopes taken over"] += any(b.taken for b in self.world.active.model.scopes.breakers.values())

    @rule(skew_s=st.sampled_from((0, 60)))
    def judge_is_paused_and_replaced(self, skew_s: int) -> None:
        self.world.zombies = [*self.world.zombies[-1:], self.world.active]
        self.world.start_judge(1000 * skew_s)
        self.world.work(self.world.active)

    @rule(save=st.booleans())
    def zombie_goes_on(self, save: bool) -> None:
        for zombie in self.world.zombies:
            self.world.work(zombie)
            zombie.beat()
            if save and zombie.alive:
                zombie.save()
        self.world.look()

    @rule(fate=st.sampled_from(("lost", "unanswered", "twice")), nth=st.integers(0, 2), zombie=st.booleans())
    def append_fails(self, fate: str, nth: int, zombie: bool) -> None:
        judge = self.world.zombies[-1] if zombie and self.world.zombies else self.world.active
        judge.producer.fate = fate, nth

    # -- Redis and the network

    @rule(fate=st.sampled_from(("lost", "unanswered")))
    def write_fails(self, fate: str) -> None:
        self.world.link.fate = fate

    @rule(up=st.booleans())
    def redis_goes_or_comes(self, up: bool) -> None:
        self.world.server.up = up

    @rule(functions=st.booleans())
    def redis_loses_all(self, functions: bool) -> None:
        SEEN["state lost while nodes were away"] += bool(self.world.active.model.away)
        self.world.server.lose_all(functions=functions)
        self.world.look()

    @rule(restore=st.booleans())
    def redis_is_rolled_back(self, restore: bool) -> None:
        if restore:
            self.world.server.roll_back()
            self.world.poisoned |= self.saved_poisoned  # what was forged is back as well
            self.world.look()
        else:
            self.world.server.save()
            self.saved_poisoned = self.world.poisoned

    @rule()
    def head_expires(self) -> None:
        self.world.server.put(None, self.world.server.pair()[1])
        self.world.look()

    @rule(kind=st.sampled_from(ATTACKS), at=pick)
    def somebody_writes_to_redis(self, kind: str, at: int) -> None:
        self.world.attack(kind, at)
        self.world.look()

    @rule(i=host, nodes=st.sampled_from((0, 1, 4, 30)), latched=st.sampled_from((0, 0, 4, 25)),
          sessions=st.sampled_from((0, 1, 3, 4)), classes=st.sampled_from((0, 1, 5, 64, 65)), pools=st.integers(0, 1),
          first=st.sampled_from(("", "DISABLED")), state=st.sampled_from(("OPEN", "OPEN", "HALF_OPEN", "FORCED_OPEN")),
          lie=st.sampled_from(("", "", "", "node", "session", "request")))  # fmt: skip
    def the_judge_signs_what_is_wrong(self, i: int, first: str, state: str, lie: str, **counts: int) -> None:
        self.world.mislead(i, counts, first, state, lie)

    @rule(i=host, at=pick, torn=st.booleans())
    def a_host_is_shown_something_old(self, i: int, at: int, torn: bool) -> None:
        seen, link = self.world.server.seen, self.world.hosts[i].link
        if seen and torn:
            link.torn = seen[at % len(seen)]
        elif seen:
            link.old = seen[at % len(seen)]
        self.world.look([self.world.hosts[i]])
        link.old = link.torn = None

    @rule(i=host, up=st.booleans())
    def a_host_is_cut_off(self, i: int, up: bool) -> None:
        self.world.hosts[i].link.up = up

    # -- hosts

    @rule(i=host, harm=st.sampled_from(("", "", "cut", "bit", "gone")), at=pick)
    def host_restarts(self, i: int, harm: str, at: int) -> None:
        self.world.restart_host(i, harm, at)

    @rule(i=host, seconds=st.sampled_from((-1000.0, -1.0, 0.0, 500.0, 1e6)))
    def wall_clock_jumps(self, i: int, seconds: float) -> None:
        self.world.hosts[i].wall_jump_s = seconds
        self.world.look([self.world.hosts[i]])

    @rule()
    def all_faults_end(self) -> None:
        self.world.heal()

    @invariant()
    def counted(self) -> None:
        SEEN["steps"] += 1

    def teardown(self) -> None:
        SEEN["examples"] += 1
        if SEEN["examples"] % _TOLD == 0:
            print(_sum(), flush=True)
        if not hasattr(self, "world"):  # Hypothesis gave up before it began
            return
        try:
            self.world.heal()
            self.world.check_log()
        finally:
            self.world.close()

    def _beats(self, waited_s: float) -> None:
        for _ in range(5):
            self.world.now += waited_s / 5
            self.world.active.beat()

    def _tick(self, bad: tuple[str, ...], good: bool, failing: bool, silent: int, faulty: tuple[str, ...] = ()) -> None:
        world = self.world
        world.now += 5.0
        away = frozenset(s for s, r in world.active.model.everything().items() if r.state == "HALF_OPEN")
        orders, self.orders = self.orders, {}
        world.tick(
            Tick(
                world.now, max(0, world.n - silent), world.n, bad,
                away if good else frozenset(), away if failing else frozenset(),
                tuple((subject, cause, world.now + length_s) for subject, (cause, length_s) in orders.items()),  # type: ignore[misc]
                faulty,
            )
        )  # fmt: skip
        world.active.beat()
        world.look()


def _sum() -> str:
    return f"{SEEN['examples']} examples, {SEEN['steps']} steps"


class _Silent:
    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    own = RedisServer(tmp_path_factory.mktemp("redis"))
    own.start()
    client = driver.Redis.from_url(own.url, single_connection_client=True)
    yield Server(client, PoolKeys(FLEET, POOL))
    client.close()
    own.stop()


@pytest.mark.timeout(0)
def test_the_protocol_holds_under_faults_in_any_order(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    name = os.environ.get("SLODRIFT_MODEL", "short")
    examples, steps = SIZES.get(name) or map(int, name.split("x"))
    for module in (outputs, projector, takeover):
        monkeypatch.setattr(module, "log", _Silent())
    monkeypatch.setattr(takeover, "read_partition", read_log)
    Protocol.server = server
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        Protocol.folder = Path(folder)
        run_state_machine_as_test(
            Protocol,
            settings=settings(
                max_examples=examples, stateful_step_count=steps, deadline=None, database=None, print_blob=False,
                derandomize=name in SIZES,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate,) if os.environ.get("SLODRIFT_MODEL_SHRINK") == "0" else (Phase.generate, Phase.shrink),
            ),
        )  # fmt: skip
    print(f"{_sum()}: {dict(SEEN)}")
    missing = rare(examples // 100) if examples >= 500 else {}
    assert not missing, f"the model hardly ever gets there, so it proves little: {missing} of {examples} examples"
