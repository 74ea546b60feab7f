"""examples/promote: its files fit each other, and the objects that the operator makes."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from shutil import copytree

import gitops
import pytest
from gitops import DEPLOY, EXAMPLE
from observed_cluster import World, eval_job, job

from headway_api.document import Json

sys.path.insert(0, str(EXAMPLE))

import argocd_cm
import propose

from headway_api.names import MAX_JOB_NAME
from headway_api.spec.evaluation import RLEvalJob
from headway_api.status import RLTrainingJobStatus
from headway_operator.plan.deadline import FINISHING_SECONDS

FOLDER = "s3://runs/training/team/refunds/77aa01/weights"
FIRST = "s3://runs/training/team/refunds/5a1f0c/weights/{step:06d}"
"""The address of the weights in the files before the first promotion."""
WAVE = "argocd.argoproj.io/sync-wave"


def validated(step: int, *, name: str = "refunds", folder: str = FOLDER) -> Json:
    """The training job, whose best validation was at this step."""
    best = {"step": step, "uri": f"{folder}/{step:06d}"}
    status = {"checkpoints": {"best": best, "adapter": {"step": 200, "uri": f"{folder}/000200"}}}
    return job(name, status=RLTrainingJobStatus.model_validate(status).as_object())


def gate_of(folder: Path) -> Json:
    (body,) = gitops.manifests(folder / propose.GATE)
    return body


def weights_of(folder: Path) -> str:
    """The address of the weights that are served."""
    deployment = gitops.manifests(folder / propose.SERVING)[0]
    (variable,) = deployment["spec"]["template"]["spec"]["initContainers"][0]["env"]
    address: str = variable["value"]
    return address


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A copy of the folder that the pipeline applies."""
    copytree(DEPLOY, tmp_path / "deploy")
    return tmp_path / "deploy"


def world_of(deploy: Path, training: Json) -> World:
    """A cluster with the gate, and this training job."""
    body = gate_of(deploy)
    world = World(eval_job(body["metadata"]["name"]) | {"spec": body["spec"]})
    world.others = [training]
    return world


def test_the_gate_judges_the_weights_that_will_be_served(deploy: Path) -> None:
    """The operator resolves the gate's checkpoint to the address in the serving manifest."""
    propose.write(deploy, propose.proposal(validated(160)))
    world = world_of(deploy, validated(160))
    world.carry_out()
    assert world.status_condition("Accepted")["status"] == "True"
    proposed, production = world.body["status"]["candidates"]
    assert (proposed["name"], proposed["uri"]) == ("proposed", weights_of(deploy))
    assert (production["kind"], weights_of(deploy)) == ("Endpoint", f"{FOLDER}/000160")


def test_a_remade_job_is_not_judged_instead_of_served_weights(deploy: Path) -> None:
    propose.write(deploy, propose.proposal(validated(160)))
    again = FOLDER.replace("77aa01", "99cc03")
    world = world_of(deploy, validated(160, folder=again))
    world.carry_out()
    world.carry_out()
    assert [each["name"] for each in world.body["status"]["candidates"]] == ["production"]
    message = world.status_condition("CandidatesResolved")["message"]
    assert (
        f"spec.candidates[proposed].checkpoint.uri: step 160 of RLTrainingJob refunds is at {again}"
        in message
    )
    assert f"but {weights_of(deploy)} belongs to another run" in message


def test_production_may_be_a_checkpoint_that_stays_as_it_is(deploy: Path) -> None:
    """The README shows this."""
    shown = re.search(r"  - name: production\n    checkpoint: .*\n", (EXAMPLE / "README.md").read_text())
    assert shown is not None
    text = re.sub(r"  - name: production[^\0]*?(?=  data:)", shown[0], (deploy / propose.GATE).read_text())
    (deploy / propose.GATE).write_text(text)
    propose.write(deploy, propose.proposal(validated(160)))
    proposed, production = RLEvalJob.model_validate(gate_of(deploy) | {"status": {}}).spec.candidates
    assert proposed.checkpoint is not None
    assert production.checkpoint is not None
    assert (proposed.checkpoint.step, proposed.checkpoint.uri) == (160, weights_of(deploy))
    assert (production.checkpoint.step, production.checkpoint.uri) == (80, FIRST.format(step=80))


def test_the_files_as_they_are_name_one_promotion(deploy: Path) -> None:
    before = [(deploy / path).read_text() for path in (propose.GATE, propose.SERVING)]
    shown = propose.Proposal("refunds", 120, weights_of(deploy))
    propose.write(deploy, shown)
    assert [(deploy / path).read_text() for path in (propose.GATE, propose.SERVING)] == before


def test_a_promotion_has_a_name_of_its_own() -> None:
    names = [
        propose.Proposal("refunds", step, f"s3://runs/{uid}/weights/{step:06d}").name
        for step in (120, 121)
        for uid in ("one", "another")
    ]
    assert len(set(names)) == 4
    assert all(re.fullmatch(r"refunds-\d{6}-[0-9a-f]{6}", name) for name in names)


def test_nothing_is_proposed_before_a_validation() -> None:
    with pytest.raises(propose.NotProposableError, match=r"status\.checkpoints\.best of refunds is empty"):
        propose.proposal(job("refunds"))


def test_a_name_that_the_api_does_not_take_is_not_proposed() -> None:
    assert propose.MAX_NAME == MAX_JOB_NAME
    assert len(propose.proposal(validated(160, name="r" * 26)).name) == MAX_JOB_NAME
    with pytest.raises(
        propose.NotProposableError, match=r": 41 characters, and the API takes 40\. .* at most 26 char"
    ):
        propose.proposal(validated(160, name="r" * 27))


@pytest.mark.parametrize("path", [propose.GATE, propose.SERVING])
def test_a_file_of_another_form_leaves_both_as_they_are(deploy: Path, path: Path) -> None:
    other = re.sub(r"step: \d+|WEIGHTS", "something else", (deploy / path).read_text())
    (deploy / path).write_text(other)
    before = [(deploy / each).read_text() for each in (propose.GATE, propose.SERVING)]
    with pytest.raises(propose.NotProposableError, match=str(path)):
        propose.write(deploy, propose.proposal(validated(160)))
    assert [(deploy / each).read_text() for each in (propose.GATE, propose.SERVING)] == before


def test_the_gate_is_an_evaluation_that_is_ready_by_its_success() -> None:
    spec = RLEvalJob.model_validate(gate_of(DEPLOY) | {"status": {}}).spec
    assert spec.readiness_policy == "Succeeded"
    assert spec.gate is not None
    assert (spec.gate.candidate, spec.gate.must_beat) == ("proposed", "production")
    assert spec.ttl_seconds_after_finished is None, "a tool would apply it again, and it would run again"


def test_production_is_asked_where_it_serves() -> None:
    _, service = gitops.manifests(DEPLOY / propose.SERVING)
    (port,) = service["spec"]["ports"]
    endpoint = gate_of(DEPLOY)["spec"]["candidates"][1]["endpoint"]
    where = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}"
    assert endpoint["url"] == f"http://{where}/v1"


def test_production_accepts_the_tools_that_the_gate_sends() -> None:
    """vLLM answers 400 to a request with tools if it has no parser for their calls."""
    deployment, _ = gitops.manifests(DEPLOY / propose.SERVING)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments = container["args"]
    assert {"--enable-auto-tool-choice", "--tool-call-parser=hermes"} <= set(arguments)
    assert arguments[arguments.index("--lora-modules") + 1].startswith("refunds="), "the name that is asked"
    assert gate_of(DEPLOY)["spec"]["candidates"][1]["endpoint"]["model"] == "refunds"


class TestArgo:
    """The parts for Argo CD."""

    def test_the_health_check_in_the_config_map_is_the_scripts(self) -> None:
        script = (EXAMPLE / "argocd" / "health.lua").read_text()
        made = argocd_cm.config_map(script)
        assert (EXAMPLE / "argocd" / "argocd-cm.yaml").read_text() == made
        assert set(gitops.health_checks().values()) == {script}

    def test_the_gate_comes_before_the_serving_objects(self) -> None:
        waves = {
            body["kind"]: int(body["metadata"]["annotations"][WAVE]) for body in gitops.manifests(DEPLOY)
        }
        assert waves == {"RLEvalJob": 0, "Deployment": 1, "Service": 1}

    def test_an_old_gate_is_not_pruned_or_missed(self) -> None:
        notes = gate_of(DEPLOY)["metadata"]["annotations"]
        assert notes["argocd.argoproj.io/sync-options"] == "Prune=false"
        assert notes["argocd.argoproj.io/compare-options"] == "IgnoreExtraneous"
        assert notes["argocd.argoproj.io/ignore-healthcheck"] == "true"

    def test_every_sync_applies_the_gate(self) -> None:
        (app,) = gitops.manifests(EXAMPLE / "argocd" / "application.yaml")
        assert "ApplyOutOfSyncOnly=true" not in app["spec"]["syncPolicy"]["syncOptions"]
        assert app["spec"]["source"]["directory"]["recurse"]
        assert (EXAMPLE / app["spec"]["source"]["path"]).is_dir()


class TestFlux:
    """The parts for Flux."""

    def test_serving_depends_on_the_gate_of_the_same_commit(self) -> None:
        (source,) = gitops.manifests(EXAMPLE / "flux" / "source.yaml")
        (gate,) = gitops.manifests(EXAMPLE / "flux" / "gate.yaml")
        (serving,) = gitops.manifests(EXAMPLE / "flux" / "serving.yaml")
        assert serving["spec"]["dependsOn"] == [{"name": gate["metadata"]["name"]}]
        assert gate["spec"]["sourceRef"] == serving["spec"]["sourceRef"]
        assert gate["spec"]["sourceRef"]["name"] == source["metadata"]["name"]
        assert gate["spec"]["wait"]
        for each in (gate, serving):
            assert gitops.manifests(EXAMPLE / each["spec"]["path"])

    def test_the_evaluation_ends_before_flux_gives_up(self) -> None:
        spec = RLEvalJob.model_validate(gate_of(DEPLOY) | {"status": {}}).spec
        (gate,) = gitops.manifests(EXAMPLE / "flux" / "gate.yaml")
        page = (EXAMPLE.parents[1] / "docs" / "gitops.md").read_text()
        timeouts = [gate["spec"]["timeout"], *re.findall(r"--timeout=(\d+h)", page)]
        assert len(timeouts) == 2, "Flux's and kubectl's"
        assert spec.active_deadline_seconds is not None
        longest = spec.pending_deadline_seconds + spec.active_deadline_seconds + FINISHING_SECONDS
        assert all(longest < int(each.removesuffix("h")) * 3600 for each in timeouts)
        assert f"and {FINISHING_SECONDS / 60:g} minutes to finish" in page

    def test_health_expressions_are_for_both_kinds(self) -> None:
        found = copy.deepcopy(gitops.expressions())
        assert {each["kind"] for each in found} == set(gitops.KINDS)
        assert {each["apiVersion"] for each in found} == {gate_of(DEPLOY)["apiVersion"]}
