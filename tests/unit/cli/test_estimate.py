"""`headway estimate` prints the estimate that the job's own coordinator makes before any episode."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from preflight_bench import Bench, write_inputs
from typer.testing import CliRunner, Result

from headway_analysis.estimate import prompts
from headway_api.artifacts import Layout
from headway_api.config import EvalConfig
from headway_api.document import Json
from headway_api.prices import DEFAULT, PriceBook, Tariff
from headway_api.sandbox_api import ResetReply
from headway_api.spec.evaluation import RLEvalJobSpec
from headway_api.spec.training import RLTrainingJobSpec
from headway_api.store import FileStore
from headway_cli import candidates, tokens
from headway_cli.commands.estimate import estimate
from headway_cli.eval_manifest import EvalOptions, manifest
from headway_cli.local.manifest import ManifestError
from headway_coordinator.estimate.job import TrainingEstimates
from headway_coordinator.evaluation import first_prompts
from headway_coordinator.evaluation.candidates import Readable
from headway_coordinator.evaluation.estimates import EvalEstimates
from headway_coordinator.ledger.segments import Ledger
from headway_coordinator.trajectory import render
from headway_sandbox.session import Session

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "sop-quickstart"
ROWS = {"train": 9, "validation": 5, "test": 4}
app = typer.Typer()
app.command()(estimate)
TIME = "2026-01-01T00:00:00Z"


def shown(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


class Stage:
    """The example's job as a file, with a toy model and a few rows, and its coordinator."""

    def __init__(self, folder: Path) -> None:
        self.folder = write_inputs(folder)
        for name, many in ROWS.items():
            rows = [{"prompt": f"{name} {'case ' * n}", "case_id": f"amber-otter-{n}"} for n in range(many)]
            (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self.job: Json = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
        self.spec: Json = self.job["spec"]
        self.spec["model"]["base"] = f"file://{folder}/model"
        self.spec["data"] = {name: {"uri": f"file://{folder}/{name}.jsonl"} for name in ROWS}
        self.spec["output"] = {"uri": f"file://{folder}/out"}
        self.store = FileStore()

    @property
    def file(self) -> Path:
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(self.job))
        return path

    def by_the_command(self, *words: str) -> Json:
        """The estimate that the command prints."""
        done = shown(str(self.file), "--environment", str(EXAMPLE), "--output", "json", *words)
        assert done.exit_code == 0, done.output
        found: Json = json.loads(done.stdout)
        return found

    def by_the_coordinator(self, book: PriceBook = DEFAULT) -> Json:
        """The estimate that the coordinator stores."""
        spec = RLTrainingJobSpec.model_validate(self.spec)
        bench = Bench(spec)
        ready = bench.basics(self.folder)
        if spec.preflight.policy != "Off":
            bench.runner.first = begun(ready.data.train[0])
        ledger = Ledger(self.store, bench.layout)
        made = TrainingEstimates(
            spec, bench.layout, self.store, ledger, lambda: Tariff(book, spec.model.base), None
        )
        made.planned(ready.data)
        made.before(ready, bench.runner)
        return kept(self.store, bench.layout)


def kept(store: FileStore, layout: Layout) -> Json:
    found: Json = json.loads(store.get(layout.estimate("data")))
    return found


def begun(row: Json) -> ResetReply:
    """The first observation of the example's environment on a row, without a sandbox."""
    spec = importlib.util.spec_from_file_location("the_example", EXAMPLE / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = Session(lambda: module.RefundDesk({})).reset({"row": row, "seed": 1})
    return ResetReply.model_validate(found)


def compared(printed: Json, known: Json) -> None:
    """Check that every number is equal to the last digit."""
    ends = {key: [each["low"], each["likely"], each["high"]] for key, each in printed["usage"].items()}
    assert ends == known["usage"]
    cost = None if printed["likely"] is None else [printed["low"], printed["likely"], printed["high"]]
    assert cost == known["cost"]
    assert printed["unpriced"] == known["unpriced"]
    assert printed["priceBook"] == known["price_book"]
    assert printed["message"] == (known["why"] or None)
    assert printed["basis"] == known["basis"] == "Data"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.chdir(tmp_path)
    return Stage(tmp_path)


def test_the_examples_job_costs_what_its_coordinator_says(stage: Stage) -> None:
    printed = stage.by_the_command()
    compared(printed, stage.by_the_coordinator())
    assert float(printed["likely"]) > 0
    assert printed["notes"] == []
    assert printed["plays"] == (
        "64 training episodes (2 steps x 4 rows x 8), 10 of validation, 8 of the test split, "
        "96 of the preflight"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"preflight": {"policy": "Off"}},
        {"preflight": {"episodes": 0}, "evaluation": {"everySteps": 1, "groupSize": 1}},
        {"judges": [{"name": "style", "endpoint": {"url": "https://e/v1", "model": "big"}}]},
        {"rollout": {"episodeTokenLimit": 60, "sampling": {"maxTokens": 30}}, "schedule": {"maxSteps": 1}},
        {"agent": {"builtin": {"maxTurns": 3, "systemPrompt": "Be brief."}}},
    ],
    ids=["no-sandbox", "no-preflight", "judges", "limits", "system-prompt"],
)
def test_changed_jobs_cost_what_their_coordinators_say(stage: Stage, changes: Json) -> None:
    stage.spec.update(changes)
    compared(stage.by_the_command(), stage.by_the_coordinator())


def test_prices_of_a_file_decide_and_what_has_none_is_named(stage: Stage) -> None:
    prices = {"sample": "100", "train": "5"}
    entry = {"since": "2026-01-01", "prices": prices, "models": {"file://*": {"train": "7"}}}
    book = PriceBook.model_validate({"name": "ours", "entries": [entry]})
    (stage.folder / "prices.yaml").write_text(json.dumps(book.as_object()))
    printed = stage.by_the_command("--prices", "prices.yaml")
    compared(printed, stage.by_the_coordinator(book))
    assert "prefill" in printed["unpriced"]
    assert printed["priceBookHash"] == book.digest[:12]
    text = shown(str(stage.file), "--environment", str(EXAMPLE), "--prices", "prices.yaml").stdout
    assert "not in the cost: cachedPrefill" in text
    total = next(line for line in text.splitlines() if line.startswith("USD in all"))
    assert total.split()[3:] == [printed["low"], printed["likely"], printed["high"]]
    assert f"prices ours@2026-01-01, SHA-256 {printed['priceBookHash']}" in text


def test_a_field_may_be_changed_without_editing_the_file(stage: Stage) -> None:
    one = stage.by_the_command("--set", "spec.schedule.maxSteps=1")
    assert one["plays"].startswith("32 training episodes (1 steps")
    assert float(one["likely"]) < float(stage.by_the_command()["likely"])


def test_without_environment_prompt_lengths_are_open_and_noted(stage: Stage) -> None:
    done = shown(str(stage.file), "--output", "json")
    printed = json.loads(done.stdout)
    assert printed["message"] == "the first messages of an episode are not known"
    assert "has no module of spec.environment.entrypoint (environment:RefundDesk)" in printed["notes"][0]
    assert float(printed["high"]) >= float(stage.by_the_command()["high"])
    text = shown(str(stage.file))
    assert "no closer estimate is possible: the first messages of an episode are not known" in text.stdout
    assert "write --environment FOLDER" in text.stderr


def test_an_estimate_without_an_episode_runs_no_environment(stage: Stage) -> None:
    found = stage.by_the_command("--no-episode")
    assert found["notes"] == ["no episode was begun, so a prompt may have any length"]
    assert found["high"] is not None


def test_an_estimate_notes_the_error_of_its_environment(stage: Stage) -> None:
    (stage.folder / "environment.py").write_text("import no_such_module\n")
    done = shown(str(stage.file), "--output", "json")
    assert done.exit_code == 0
    [note] = json.loads(done.stdout)["notes"]
    assert "the environment fails on this machine" in note
    assert "no_such_module" in note


@pytest.mark.parametrize("base", ["hf://nobody/no-such-model", "file:///no/such/folder"])
def test_without_its_model_an_estimate_uses_the_limits(stage: Stage, base: str) -> None:
    stage.spec["model"]["base"] = base
    printed = stage.by_the_command()
    assert f"the tokenizer of {base} is not available" in printed["notes"][0]
    assert float(printed["low"]) <= float(printed["likely"]) <= float(printed["high"])
    with_model = stage.by_the_command("--model", str(stage.folder / "model"))
    assert with_model["notes"] == []


def test_an_unknown_context_length_is_asked_for(stage: Stage) -> None:
    stage.spec["model"] = {"base": "hf://nobody/no-such-model"}
    done = shown(str(stage.file))
    assert done.exit_code == 2
    assert "spec.model.contextLength is not given" in done.stderr
    stage.spec["model"] = {"base": "hf://Qwen/Qwen3-8B"}
    assert shown(str(stage.file)).exit_code == 0, "the family's context is known"


def test_rows_that_fill_no_batch_have_no_known_cost(stage: Stage) -> None:
    (stage.folder / "train.jsonl").write_text('{"prompt": "a", "case_id": "b"}\n')
    printed = stage.by_the_command()
    assert printed["likely"] is None
    assert printed["message"] == "1 training rows do not fill one batch of 4"
    assert "1 training rows do not fill one batch of 4" in shown(str(stage.file)).stdout


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: (s.folder / "train.jsonl").unlink(), "spec.data.train.uri: no object at file://"),
        (lambda s: (s.folder / "train.jsonl").write_text("{"), "is not readable jsonl: row 0 cannot be read"),
        (lambda s: s.spec["algorithm"].update(groupSize=0), "spec.algorithm.groupSize"),
        (lambda s: s.spec.update(algoritm={}), "did you mean algorithm?"),
        (lambda s: (s.folder / "train.jsonl").write_text("\n"), "has no rows"),
    ],
    ids=["no-file", "torn-row", "wrong-field", "unknown-field", "no-rows"],
)
def test_a_mistake_is_named_with_its_field(stage: Stage, spoil: Any, words: str) -> None:
    spoil(stage)
    done = shown(str(stage.file))
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "words"), [(None, "No such file"), ("name: x", "entries: is missing")])
def test_a_file_that_is_not_a_price_book_is_named(stage: Stage, text: str | None, words: str) -> None:
    if text is not None:
        (stage.folder / "prices.yaml").write_text(text)
    done = shown(str(stage.file), "--prices", "prices.yaml")
    assert done.exit_code == 2
    assert "--prices prices.yaml: " in done.stderr
    assert words in done.stderr


def test_a_price_book_of_the_cluster_is_noted_as_not_read(stage: Stage) -> None:
    stage.spec["priceBook"] = "ours"
    assert "spec.priceBook names the ConfigMap ours" in stage.by_the_command()["notes"][0]


def an_evaluation(stage: Stage, **spec: Any) -> Json:
    """An evaluation of the stage's job, as `headway eval --from` writes it.

    It also has another model and an endpoint as candidates.
    """
    made = manifest(EvalOptions(models=["hf://nobody/other"], job="sop-quickstart"), stage.job)
    endpoint = {"name": "far", "endpoint": {"url": "https://e/v1", "model": "big"}}
    made["spec"]["candidates"].append(endpoint)
    made["spec"].pop("tracking", None)
    made["spec"].update(spec)
    return made


@pytest.mark.parametrize("asked", [{}, {"evaluation": {"maxRows": 2, "sampling": {"maxTokens": 9}}}])
def test_an_evaluation_costs_what_its_coordinator_says(stage: Stage, asked: Json) -> None:
    training, job = stage.file, an_evaluation(stage, **asked)
    file = stage.folder / "eval.yaml"
    file.write_text(yaml.safe_dump(job))
    words = ["--environment", str(EXAMPLE), "--training", str(training), "--output", "json"]
    done = shown(str(file), *words)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    compared(printed, by_the_evaluations_coordinator(stage, job))
    assert printed["message"] == "the tokenizer of other is not available"
    assert printed["unpriced"] == ["endpointPrompt", "endpointSample"]
    rows = asked.get("evaluation", {}).get("maxRows", 4)
    assert printed["plays"] == f"{4 * rows} episodes: {rows} rows by each of tuned, tuned-base, other, far"


def by_the_evaluations_coordinator(stage: Stage, job: Json) -> Json:
    spec = RLEvalJobSpec.model_validate(job["spec"])
    base = stage.spec["model"]["base"]
    served = {"base": base, "dtype": "float32", "contextLength": 512, "serverSet": 0}
    weights = {"job": "sop-quickstart", "step": 0, "uri": f"{stage.spec['output']['uri']}/weights/000000"}
    resolved = [
        {"name": "tuned", "kind": "Adapter", **served, "loraRank": 16, **weights},
        {"name": "tuned-base", "kind": "Model", **served},
        {"name": "other", "kind": "Model", "base": "hf://nobody/other", "dtype": "bfloat16", "serverSet": 1},
        {"name": "far", "kind": "Endpoint"},
    ]
    config = EvalConfig.model_validate(
        {"name": "e", "namespace": "n", "uid": "u", "spec": spec, "candidates": resolved}
    )
    rows = [json.loads(line) for line in (stage.folder / "test.jsonl").read_text().splitlines()]
    rows = rows[: spec.evaluation.max_rows]
    model = Readable(render.load(stage.folder / "model", "auto")[0], 512, "a template")
    models = {"tuned": model, "tuned-base": model}
    layout = Layout(f"file://{stage.folder}/out", "n", "e", "u")
    made = EvalEstimates(
        config, layout, stage.store, Ledger(stage.store, layout), lambda: Tariff(DEFAULT, config.model), None
    )
    made.before(
        len(rows),
        first_prompts.openings(config, begun(rows[0]), models, rows),
        prompts.unknown(config, models),
    )
    return kept(stage.store, layout)


def test_a_candidate_of_an_unknown_job_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/no/such/config")
    file = stage.folder / "eval.yaml"
    file.write_text(yaml.safe_dump(an_evaluation(stage)))
    done = shown(str(file))
    assert done.exit_code == 2
    assert "a candidate names the training job sop-quickstart: write --training FILE of it" in done.stderr
    assert "no cluster is configured" in done.stderr


def test_candidates_resolve_to_existing_or_expected_weights(stage: Stage) -> None:
    def chosen(which: Json, status: Json) -> str | None:
        spec = an_evaluation(stage)["spec"]
        spec["candidates"] = [{"name": "x", "checkpoint": {"job": "j", **which}}]
        job = {"metadata": {"name": "j"}, "spec": stage.spec, "status": status}
        [found] = candidates.resolved(RLEvalJobSpec.model_validate(spec), lambda name: job)
        return None if found.uri is None else found.uri.rpartition("weights/")[2]

    status = {
        "checkpoints": {
            "best": {"step": 2, "uri": "s3://b/weights/000002"},
            "adapter": {"step": 4, "uri": "s3://b/weights/000004"},
        },
        "conditions": [{"type": "Complete", "status": "True", "reason": "R", "lastTransitionTime": TIME}],
    }
    assert chosen({"which": "best"}, status) == "000002"
    assert chosen({"which": "latest"}, status) == "000004"
    assert chosen({"step": 3}, status) == "000003"
    assert chosen({"step": 9}, status) == "000009", "it is taken to come"
    assert chosen({"which": "best"}, {}) == "000000", "it is taken to come"


def test_candidates_that_cannot_share_their_servers_are_refused(stage: Stage) -> None:
    spec = an_evaluation(stage)["spec"]
    spec["candidates"] = [
        {"name": name, "model": {"base": "hf://a/b", "contextLength": length}}
        for name, length in (("one", 512), ("two", 1024))
    ]
    with pytest.raises(ManifestError, match="contextLength"):
        candidates.resolved(RLEvalJobSpec.model_validate(spec), lambda name: {})


def test_a_tokenizer_without_a_template_is_unavailable(stage: Stage) -> None:
    model = stage.folder / "model"
    config = json.loads((model / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    for path in model.glob("chat_template*"):
        path.unlink()
    with pytest.raises(tokens.ModelUnavailableError, match="has no chat template"):
        tokens.known(model, 512)
    (model / "config.json").unlink()
    with pytest.raises(tokens.ModelUnavailableError, match=r"config\.json of the model does not say"):
        tokens.known(model, None)


def test_arguments_of_calls_are_given_to_templates_as_objects(stage: Stage) -> None:
    known = tokens.known(stage.folder / "model", None)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    asked = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    renderer = render.load(stage.folder / "model", "auto")[0]
    assert known.size(asked, []) == len(renderer.render(asked, []))
    assert known.context_length == 512
