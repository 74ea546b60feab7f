"""Every command that a page shows is accepted by its program, and what it names exists."""

from __future__ import annotations

import re
import subprocess

import pytest
from doc_blocks import Block, Typed, of, spans, typed
from doc_commands import fault

TYPED = [(block, each) for block in of("console") for each in typed(block)]


@pytest.mark.parametrize("block", of("console"), ids=str)
def test_a_shell_reads_each_line_of_a_block(block: Block) -> None:
    text = "\n".join(each.text for each in typed(block))
    read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=10)
    assert read.returncode == 0, f"{block}: {read.stderr}"


@pytest.mark.parametrize(("block", "line"), TYPED, ids=[f"{block}-{line.text[:40]}" for block, line in TYPED])
def test_each_program_takes_its_arguments(block: Block, line: Typed) -> None:
    assert fault(block.page, line.text) == "", f"{block}: {line.text}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("headway chek job.yaml", "No such command 'chek'"),
        ("headway run job.yaml --lokal", "No such option: --lokal"),
        ("headway replay a --step one", "valid integer"),
        ("headway replay a --step 1 --set spec.algorithm.kl.coef=1", "no field spec.algorithm.kl.coef"),
        ("kubectl get rljt", "there is no resource rljt"),
        ("kubectl get rltj --wide", "--wide"),
        ("kubectl get rltj NAME -o jsonpath='{.status.budgets}'", "no field .status.budgets"),
        ("kubectl explain rltrainingjob.spec.algorithms", "no field spec.algorithms"),
        ("kubectl annotate rltj NAME headway.dev/resum=a", "nothing reads the annotation"),
        ("kubectl annotate rltj NAME headway.dev/remedy=OnPolic", "there is no remedy OnPolic"),
        ("kubectl wait rlev/a --for=condition=Redy --timeout=1s", "'Redy' is not a valid"),
        ("kubectl logs job/NAME-lerner", "no role has objects called NAME-lerner"),
        ("kubectl logs -l app.kubernetes.io/component=operators", "the chart has no label"),
        ("kubectl port-forward svc/NAME-coordinator 8101", "nothing of ours listens at 8101"),
        ("kubectl apply -f examples/none.yaml", "there is no examples/none.yaml"),
        ("""kubectl patch rltj NAME -p '{"spec":{"suspended":true}}'""", "no field spec.suspended"),
        ("kubectl get rltj | grep -Ex 'Completed'", "no job is ever Completed"),
        ("make dmo", "no target dmo"),
        ("make images IMAGE_ARGS=--pus=1", "does not take these arguments"),
        ("IMAGES_TAG=1 make demo", "nothing in hack/demo reads IMAGES_TAG"),
        ("python hack/recount_eval.py a b --statu c", "no option --statu"),
        ("python -m headway_api.recipe job.yaml", "there is no module headway_api.recipe"),
        ("helm install headway charts/headwy -f my-values.yaml", "there is no charts/headwy"),
        ("inspect eval examples/suites/arithmetic.py@sums", "no task sums"),
        ("terraform apply", "say in PROGRAMS or OTHERS"),
    ],
)
def test_a_wrong_command_is_found(text: str, says: str) -> None:
    assert says in fault("README.md", text)


NAMED = sorted({span for span in spans() if re.match(r"(headway|make) [a-z]", span[1])})
"""Commands in sentences and tables, most of them without arguments."""
INCOMPLETE = ("Missing argument", "Missing option", "Invalid value for")


@pytest.mark.parametrize(("page", "text"), NAMED)
def test_a_command_that_a_sentence_names_exists(page: str, text: str) -> None:
    found = fault(page, text)
    assert not found or found.startswith(INCOMPLETE), f"{page}: {found}"


def test_sentences_name_commands() -> None:
    assert len(NAMED) > 80
