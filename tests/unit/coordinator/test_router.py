"""The router: which servers are in rotation, and which server answers a turn."""

from __future__ import annotations

from collections import Counter
from random import Random

from episodes import version
from hypothesis import given
from hypothesis import strategies as st

from headway_coordinator.engines import weights
from headway_coordinator.engines.router import LAST_REST_SECONDS, SLACK, Endpoint, Router, rest_after

A, B, C = (Endpoint(f"http://{name}:8000", f"http://{name}:8001") for name in "abc")


def router(*holding: Endpoint, wanted: int = 1) -> Router:
    found = Router(wanted=version(wanted))
    found.discovered([A, B, C])
    for endpoint in holding:
        found.holds(endpoint, version(1))
    return found


def turn(found: Router, episode: str) -> Endpoint:
    """The server that gets the episode's next turn."""
    server = found.pick(episode)
    assert server is not None
    return server.endpoint


def test_only_servers_with_the_wanted_weights_are_asked() -> None:
    found = router(A, B)
    assert [s.endpoint for s in found.in_rotation()] == [A, B]
    found.wanted = version(2)
    assert found.pick("e") is None
    found.holds(B, version(2))
    assert found.pick("e").endpoint == B  # type: ignore[union-attr]


def test_equal_steps_of_two_incarnations_are_two_versions() -> None:
    found = router(A)
    found.wanted = version(1, incarnation=1)
    assert found.pick("e") is None


def test_a_new_episode_gets_the_least_loaded_server_and_stays() -> None:
    found = router(A, B)
    found.servers[A].inflight = 2
    assert found.pick("one").endpoint == B  # type: ignore[union-attr]
    found.servers[B].inflight = 5
    assert found.pick("one").endpoint == B  # type: ignore[union-attr]
    assert found.pick("two").endpoint == A  # type: ignore[union-attr]
    found.lost(B, "connection refused")
    assert found.pick("one").endpoint == A  # type: ignore[union-attr]
    found.forget("one")
    assert "one" not in found.sessions


def test_episodes_stay_spread_over_the_servers_after_updates() -> None:
    servers = [Endpoint(f"http://{n}:8000", f"http://{n}:8001") for n in range(4)]
    episodes = [f"e{i}" for i in range(32)]
    found = Router(wanted=version(0))
    found.discovered(servers)
    for step in range(3):
        found.wanted = version(step)
        for endpoint in servers:
            found.holds(endpoint, version(step))
            took = Counter(turn(found, episode) for episode in episodes)
        assert max(took.values()) <= 32 / 4 + SLACK
        homes = [turn(found, episode) for episode in episodes]
        assert [turn(found, episode) for episode in episodes] == homes, "each stays where its prefix is"


def test_episodes_keep_their_server_if_all_servers_return_first() -> None:
    servers = [Endpoint(f"http://{n}:8000", f"http://{n}:8001") for n in range(4)]
    found = Router(wanted=version(0))
    found.discovered(servers)
    homes = []
    for step in range(2):
        found.wanted = version(step)
        for endpoint in servers:
            found.holds(endpoint, version(step))
        homes.append([turn(found, f"e{i}") for i in range(30)])
        assert sorted(Counter(homes[-1]).values()) == [7, 7, 8, 8]


@given(st.lists(st.sampled_from(["turn", "end", "holds", "lost"]), max_size=60), st.randoms())
def test_episodes_spread_over_the_servers_and_stay_there(events: list[str], random: Random) -> None:
    found = router(A)
    for what in events:
        if what == "turn":
            found.pick(f"e{random.randrange(20)}")
        elif what == "end":
            found.forget(f"e{random.randrange(20)}")
        elif what == "holds":
            found.holds(random.choice([A, B, C]), version(1))
        else:
            found.lost(random.choice([A, B, C]), "refused")
    for endpoint in (A, B, C):
        found.holds(endpoint, version(1))
    for _ in range(2):
        homes = [turn(found, f"e{i}") for i in range(20)]
    assert max(Counter(homes).values()) <= 20 / 3 + SLACK
    assert [turn(found, f"e{i}") for i in range(20)] == homes


def test_a_departed_server_returns_without_weights() -> None:
    found = router(A)
    assert found.discovered([B]) == (set(), {A, C})
    assert found.discovered([A, B]) == ({A}, set())
    assert found.in_rotation() == []
    found.holds(C, version(1))
    assert C not in found.servers


def test_the_problem_quotes_the_servers_error() -> None:
    assert "learner" in str(Router().problem())
    assert "no rollout server" in str(Router(wanted=version(0)).problem())
    found = router(A)
    assert found.problem() is None
    found.lost(A, "canary off by 3.2")
    assert "canary off by 3.2" in str(found.problem())


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B, C]), st.sampled_from(["holds", "old", "lost", "went"])), max_size=20
    )
)
def test_the_picked_server_holds_the_wanted_weights(events: list[tuple[Endpoint, str]]) -> None:
    found = router()
    for endpoint, what in events:
        if what == "holds":
            found.discovered([*found.servers, endpoint])
            found.holds(endpoint, version(1))
        elif what == "old":
            found.holds(endpoint, version(0))
        elif what == "lost":
            found.lost(endpoint, "gone")
        else:
            found.discovered(set(found.servers) - {endpoint})
        picked = found.pick("e")
        assert (picked is None) == (found.problem() is not None)
        assert picked is None or picked.version == found.wanted


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lose(found: Router, endpoint: Endpoint) -> None:
    """The server loses a request, and then a look finds it healthy."""
    found.lost_request(endpoint, "500")
    found.holds(endpoint, version(1))


def asked(found: Router) -> set[Endpoint]:
    return {server.endpoint for server in found.in_rotation()}


def test_a_server_that_loses_requests_rests_longer_each_time() -> None:
    found, clock = router(A, B), Clock()
    found.clock = clock
    rests = []
    for _ in range(9):
        lose(found, A)
        began = clock.now
        assert asked(found) == {B}
        while asked(found) == {B}:
            clock.now += 0.5
        rests.append(clock.now - began)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    found.servers[A].losses = 0
    lose(found, A)
    clock.now += 1
    assert asked(found) == {A, B}, "an answer in between ends the row"


def test_requests_lost_at_the_same_time_count_as_one_loss() -> None:
    found, clock = router(A, B), Clock()
    found.clock = clock
    for _ in range(32):
        lose(found, A)
    assert found.servers[A].losses == 1
    clock.now += 1
    assert asked(found) == {A, B}


def test_resting_servers_are_asked_if_no_other_exists() -> None:
    found = router(A, B)
    found.clock = Clock()
    lose(found, A)
    assert asked(found) == {B}
    lose(found, B)
    assert asked(found) == {A, B}
    found.lost(A, "silent")
    assert asked(found) == {B}
    found.lost(B, "silent")
    assert asked(found) == set()
    found.holds(C, version(1))
    found.holds(A, version(1))
    assert asked(found) == {C}


def test_a_server_that_rests_still_holds_its_weights() -> None:
    found = router()
    found.clock, found.replicas = Clock(), 2
    found.lost_request(A, "500")
    found.holds(B, version(1))
    assert not found.met
    found.holds(A, version(1))
    assert (found.met, asked(found), len(found.verified())) == (True, {B}, 2)


def test_server_with_overtaken_weights_past_load_time_is_behind() -> None:
    found, clock = router(), Clock()
    found.clock, longest = clock, weights.LOAD_SECONDS
    for endpoint in (A, B):
        found.holds(endpoint, version(1))
    clock.now += 10 * longest
    assert found.behind(clock.now) == [], "in step, and C has held none yet"
    found.want(version(2))
    since = clock.now
    clock.now += 1
    found.holds(A, version(1))
    found.holds(C, version(1))
    found.holds(B, version(2))
    assert found.behind(since + longest) == []
    assert found.behind(since + longest + 0.5) == [A]
    assert set(found.behind(since + longest + 1.5)) == {A, C}
    found.lost(A, "refused")
    assert found.behind(since + longest + 1.5) == [C], "it has another problem for now"
    found.holds(A, version(1))
    assert set(found.behind(since + longest + 1.5)) == {A, C}, "and the time goes on"
    found.starting(A)
    found.lost(A, "503")
    clock.now += 1
    found.holds(A, version(1))
    assert found.behind(since + longest + 1.5) == [C], "it has begun anew"
    found.holds(A, version(2))
    assert found.behind(since + longest + 1.5) == [C]
    clock.now += longest
    found.holds(C, version(2))
    found.lost(C, "500")
    found.want(version(3))
    found.holds(C, version(2))
    assert found.behind(clock.now + longest) == [], "it was in step, though not to the end"


@given(st.integers(1, 10**6))
def test_rests_grow_up_to_the_maximum(losses: int) -> None:
    assert 0 < rest_after(losses) <= rest_after(losses + 1) <= LAST_REST_SECONDS
