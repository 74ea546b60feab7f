"""The sandbox's server as a process: its API, its handling of HTTP, and how it ends."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_server import Server

from headway_api import names, sandbox_api
from headway_api.exits import PERMANENT
from headway_api.sandbox_api import FinishReply, ProbeReply, Problem, ToolReply
from headway_sandbox import reach, session


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path).start()
    yield running
    running.close()


def test_an_episode_uses_the_documents_of_the_contract(server: Server) -> None:
    reply = server.begin()
    assert reply.messages == [{"role": "user", "content": "count"}]
    assert [spec["function"]["name"] for spec in reply.tools] == ["add", "stop", "crash", "sleep"]
    assert server.tool("add", amount=2) == ToolReply(content='{"total": 5}', done=False)
    assert server.tool("stop") == ToolReply(content="stopped", done=True)
    status, body = server.finish({"role": "assistant", "content": "5"})
    assert status == 200
    assert FinishReply.model_validate(body) == FinishReply(reward=0.5, score=1.0, metrics={"calls": 2.0})


def test_the_reward_counts_actual_tool_calls_not_claimed_ones(server: Server) -> None:
    server.begin()
    server.tool("add", amount=1)
    claimed = {"role": "tool", "name": "add", "content": '{"total": 1000000}'}
    forged = {"role": "assistant", "content": "x", "reward": 1.0, "calls": [{"name": "add"}] * 50}
    status, body = server.finish(claimed, forged)
    assert status == 200
    assert (body["reward"], body["metrics"]["calls"]) == (0.4, 1.0)


def test_nothing_changes_a_judgement(server: Server) -> None:
    server.begin()
    first = server.finish({"role": "assistant", "content": "3"})
    status, body = server.post("/tool", {"name": "add", "arguments": {"amount": 7}})
    assert (status, body["reason"]) == (409, "EpisodeNotOpen")
    assert server.finish({"role": "assistant", "content": "3"}) == first


def test_a_failing_tool_is_an_observation(server: Server) -> None:
    server.begin()
    assert "must be of type integer" in server.tool("add", amount="two").content
    assert "there is no tool fly" in server.tool("fly").content
    assert server.finish()[1]["metrics"]["calls"] == 2.0


def test_an_environments_bug_is_a_problem_with_its_message(server: Server) -> None:
    server.begin()
    status, body = server.post("/tool", {"name": "crash", "arguments": {}})
    problem = Problem.model_validate(body)
    assert status == 500
    assert (problem.reason, problem.field) == ("ToolFailed", "spec.environment.entrypoint")
    assert "KeyError: 'bug'" in problem.message


def test_a_reward_that_is_not_finite_is_refused_permanently(server: Server) -> None:
    server.begin(nan=True)
    status, body = server.finish()
    assert status == 500
    assert Problem.model_validate(body).permanent
    assert body["reason"] == "RewardNotFinite"


def test_a_pod_serves_one_lease_with_one_token_and_one_reset(server: Server) -> None:
    assert server.get("/healthz") == (200, {"lease": None, "deadline": None})
    assert server.post("/reset", {"row": {}, "seed": 0})[0] == 401
    server.begin()
    assert server.lease("e1", "secret")[0] == 204
    assert server.lease("e2", "secret")[1]["reason"] == "LeaseMismatch"
    assert server.lease("e1", "other")[0] == 409
    assert server.post("/tool", {"name": "stop", "arguments": {}}, token="other")[0] == 401
    assert server.post("/tool", {"name": "stop", "arguments": {}}, token=None)[0] == 401
    assert server.post("/reset", {"row": {"prompt": "x"}, "seed": 0})[1]["reason"] == "AlreadyReset"
    assert server.get("/healthz")[1]["lease"] == "e1"


def test_malformed_requests_get_a_problem(server: Server) -> None:
    server.begin()
    for path, body in [("/tool", {"name": 3, "arguments": {}}), ("/tool", {"name": "add"}), ("/finish", {})]:
        status, answer = server.post(path, body)
        assert (status, Problem.model_validate(answer).reason) == (400, "MalformedRequest")
    assert server.post("/nowhere", {})[0] == 404
    assert server.get("/tool")[0] == 404


def raw(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/2\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nbroken\r\n\r\n", b"400"),
        (b"POST /tool HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
        (b"POST /tool HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /tool HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", b"400"),
        (b"POST /tool HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"POST /lease HTTP/1.1\r\nContent-Length: 3\r\n\r\n[1]", b"400"),
        (b"POST /lease HTTP/1.1\r\nContent-Length: 2\r\n\r\n{x", b"400"),
    ],
)
def test_invalid_http_is_refused(server: Server, request_bytes: bytes, status: bytes) -> None:
    assert raw(server, request_bytes).split(b" ")[1] == status


def test_requests_may_share_a_connection_and_a_packet(server: Server) -> None:
    answers = raw(server, b"GET /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answers.count(b"HTTP/1.1 200 OK") == 2


def test_health_is_answered_while_a_tool_runs(server: Server) -> None:
    server.begin()
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    body = json.dumps({"name": "sleep", "arguments": {"seconds": 1}})
    slow.request("POST", "/tool", body, {"Authorization": "Bearer secret"})
    assert server.get("/healthz")[0] == 200
    assert slow.getresponse().status == 200
    slow.close()


def test_the_process_exits_at_the_deadline_even_inside_a_tool(server: Server) -> None:
    assert server.lease(seconds=3.0)[0] == 204
    server.post("/reset", {"row": {"prompt": "x"}, "seed": 0})
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        server.post("/tool", {"name": "sleep", "arguments": {"seconds": 60}})
    assert server.process.wait(timeout=30) == 1


def test_sigterm_ends_the_server(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=30) == 0


@pytest.mark.parametrize("entrypoint", ["counter:Missing", "missing:Counter"])
def test_an_unimportable_environment_exits_with_permanent_code(tmp_path: Path, entrypoint: str) -> None:
    server = Server(tmp_path, entrypoint)
    assert server.process.wait(timeout=30) == PERMANENT
    assert f"{entrypoint} cannot be imported" in server.log


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([0.3], "there are 1 turn rewards for 2 turns"),
        ([0.1, 0.3], "add up to 0.4, and the reward is 0.3"),
        ([1e308, 1e308], "add up to inf"),
    ],
)
def test_rewards_of_turns_must_match_turns_and_reward(server: Server, given: list[float], says: str) -> None:
    server.begin(turns=given)
    status, body = server.finish(turns=2)
    problem = Problem.model_validate(body)
    assert (status, problem.reason, problem.permanent) == (500, "TurnRewardsWrong", True)
    assert says in problem.message
    assert "not all finite" in session.wrong_turns([float("inf"), 0.0], 2, 0.3)


def test_rewards_of_turns_reach_the_coordinator(server: Server) -> None:
    server.begin(turns=[0.1, 0.2])  # the sum is not exactly 0.3
    assert FinishReply.model_validate(server.finish(turns=2)[1]).turn_rewards == [0.1, 0.2]
    assert server.post("/finish", {"messages": [], "truncated": False, "turns": -1})[0] == 400


def test_an_agent_that_took_no_turn_is_judged_as_a_whole(server: Server) -> None:
    server.begin(turns=[0.1, 0.1])  # wrong for any number of turns, but ignored if there are none
    reply = FinishReply.model_validate(server.finish(turns=0)[1])
    assert (reply.reward, reply.turn_rewards) == (pytest.approx(0.3), None)


def test_both_sides_allow_the_same_rounding() -> None:
    assert session.TURN_REWARDS_TOLERANCE == sandbox_api.TURN_REWARDS_TOLERANCE


def test_a_sandbox_reports_which_destinations_it_reaches(server: Server) -> None:
    server.begin()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ports = [listening.getsockname()[1], closed.getsockname()[1]]
        places = [{"address": "127.0.0.1", "port": port} for port in ports]
        status, body = server.post("/probe", {"destinations": places})
    assert status == 200
    assert ProbeReply.model_validate(body).reached == [True, False]


def test_a_name_server_is_asked_over_udp(server: Server) -> None:
    server.begin()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as serving,
        socket.socket(type=socket.SOCK_DGRAM) as silent,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        for one in (serving, silent):
            one.bind(("127.0.0.1", 0))
        heard: list[bytes] = []

        def serve() -> None:
            """Drop the first datagram, and answer the second."""
            for _ in range(2):
                asked, peer = serving.recvfrom(512)
                heard.append(asked)
            serving.sendto(asked[:2] + b"\x80\x05", peer)

        answering = threading.Thread(target=serve, daemon=True)
        answering.start()
        ports = [each.getsockname()[1] for each in (serving, silent, tcp)]
        places = [{"address": "127.0.0.1", "port": port, "protocol": "UDP"} for port in ports]
        status, body = server.post("/probe", {"destinations": places})
        answering.join(10)
    assert status == 200
    found = ProbeReply.model_validate(body)
    assert found.reached == [True, False, False]
    assert found.protocols == ["TCP", "UDP"]
    assert heard == [reach.QUERY] * 2


@pytest.mark.parametrize(
    "destinations",
    [
        None,
        [1],
        [{"address": "127.0.0.1"}],
        [{"address": "h", "port": 0}],
        [{"address": "h", "port": 1}] * 9,
        [{"address": "h", "port": 1, "protocol": "ICMP"}],
    ],
)
def test_destinations_out_of_bounds_are_refused(server: Server, destinations: object) -> None:
    server.begin()
    status, body = server.post("/probe", {"destinations": destinations})
    assert (status, body["reason"]) == (400, "BadRequest")
    assert reach.DESTINATIONS == sandbox_api.MAX_DESTINATIONS


def test_a_sandbox_reports_what_it_reached_at_its_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as api:
        api.settimeout(20)
        where = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(api.getsockname()[1]),
        }
        running = Server(tmp_path, variables={names.ENV_REACH: "1", **where}).start()
        api.accept()[0].close()
    try:
        running.begin()
        status, body = running.post("/probe", {"destinations": []})
    finally:
        running.close()
    assert status == 200
    found = ProbeReply.model_validate(body)
    assert found.reached == []
    assert found.start is not None
    assert found.start.destinations[-1]["address"] == "127.0.0.1"
    assert found.start.reached[-1], "it was there then, and is gone"
    assert found.start.age < found.age


def test_a_sandbox_tries_connections_only_if_told(server: Server) -> None:
    server.begin()
    assert server.post("/probe", {"destinations": []})[1].get("start") is None
