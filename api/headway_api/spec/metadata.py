"""The part of an object's metadata that Headway reads, and the rules for its name."""

import re
from datetime import datetime

from pydantic import ConfigDict, Field

from headway_api.base import Model
from headway_api.names import MAX_JOB_NAME
from headway_api.rules import Rule

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


class Metadata(Model):
    """The fields of Kubernetes' ObjectMeta that Headway reads. Other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    creation_timestamp: datetime | None = None


NAME_RULES = (
    Rule(
        f"size(self.metadata.name) <= {MAX_JOB_NAME}",
        f"metadata.name must have at most {MAX_JOB_NAME} characters: its pods' host names are made from it",
        lambda self: len(self.metadata.name) <= MAX_JOB_NAME,
        "metadata",
    ),
    Rule(
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        "metadata.name must start with a letter, end with a letter or digit, and hold only lower-case "
        "letters, digits and -",
        lambda self: not self.metadata.name or re.match(NAME_PATTERN, self.metadata.name) is not None,
        "metadata",
    ),
)
