"""Some process reads every field that a user may write. Other fields are refused, or have only one value."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from field_reads import attributes_read
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headway_api.spec.budget import RLBudget
from headway_api.spec.evaluation import RLEvalJob
from headway_api.spec.training import RLTrainingJob

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("api", "analysis", "cli", "coordinator", "operator", "rollout", "sandbox", "trainer", "wire")
DECLARING = ("headway_api.spec", "headway_api.recipes")
KINDS = (RLTrainingJob, RLEvalJob, RLBudget)

READ_WITHOUT_ITS_NAME: dict[str, tuple[str, str]] = {
    "TokenBudget": ("api/headway_api/spec/lifecycle.py", "budget.tokens.as_object()"),
    "SharedTokenBudget": ("api/headway_api/spec/lifecycle.py", "budget.tokens.as_object()"),
    "RoleSecretRefs": ("api/headway_api/spec/lifecycle.py", "getattr(self.role_secret_refs, role"),
    "ttl_seconds_after_finished": (
        "operator/headway_operator/plan/planner.py",
        'raw["spec"].get("ttlSecondsAfterFinished")',
    ),
    "managed_by": ("operator/headway_operator/plan/reading.py", 'raw["spec"].get("managedBy"'),
}
"""Models whose fields are all read at once, and fields that are read as JSON: the file, and the code
there."""


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Models that an annotation names at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


def is_constant(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def fields(*kinds: type[BaseModel]) -> Iterator[tuple[str, str, FieldInfo]]:
    """Each field of specs and metadata: Model.field, its full name where it is declared, and the field."""
    todo, seen = [*kinds], set[type[BaseModel]]()
    while todo:
        model = todo.pop()
        if model in seen or not model.__module__.startswith("headway_api.spec"):
            continue
        seen.add(model)
        for name, field in model.model_fields.items():
            home = next(base for base in model.__mro__ if name in inspect.get_annotations(base))
            yield f"{model.__name__}.{name}", f"{home.__module__}.{home.__name__}.{name}", field
            todo += models_in(field.annotation)


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_every_field_is_read_by_some_process() -> None:
    packages = [ROOT / folder / f"headway_{folder}" for folder in FOLDERS]
    read = attributes_read([ROOT / folder for folder in FOLDERS], packages, DECLARING)
    assert "headway_api.spec.model.Lora.rank" in read
    unread = [
        name
        for name, full_name, field in fields(*KINDS)
        if full_name not in read
        and not is_constant(field)
        and not {*name.split(".")} & READ_WITHOUT_ITS_NAME.keys()
    ]
    assert unread == [], (
        "read each in the process that acts on it, by its name: a rule alone reads nothing. A field that "
        "nothing acts on promises what no one does: remove it"
    )


@pytest.mark.parametrize(("file", "code"), READ_WITHOUT_ITS_NAME.values(), ids=READ_WITHOUT_ITS_NAME)
def test_a_field_read_without_its_name_is_still_read(file: str, code: str) -> None:
    assert code in (ROOT / file).read_text()


MODELS = """
from typing import Callable

class Base:
    inherited: int
    unread_by_heirs: int

class Block(Base):
    rule: Callable[["Block"], bool] = lambda self: self.in_a_rule > 0
    used: int
    in_a_rule: int
    by_property: int
    by_idle_property: int
    never: int
    name: int

    @property
    def doubled(self) -> int:
        return self.by_property * 2

    @property
    def idle(self) -> int:
        return self.by_idle_property * 2
"""
READER = """
from models import Block

class Other:
    name: int = 0

def act(blocks: list[Block | None], other: Other) -> int:
    return sum(one.used + one.doubled + one.inherited + other.name for one in blocks if one is not None)
"""


def test_a_field_is_distinguished_from_another_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "reader.py").write_text(READER)
    read = attributes_read([tmp_path], [tmp_path], ("models",))
    found = {name.rpartition(".")[2] for name in read if name.startswith(("models.Block.", "models.Base."))}
    assert found == {"used", "doubled", "by_property", "inherited"}
