"""Tokens used, what they cost, what is estimated, and what is left of the budget."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, computed_field

from headway_api.base import StatusModel
from headway_api.spec.types import Decimal, Money
from headway_api.status.common import Count, Text, Word, list_map


class Usage(StatusModel):
    """What the job has used and what that costs; the ledger in spec.output is the source."""

    prefill_tokens: Count = 0
    """Prompt tokens the servers computed."""
    cached_prefill_tokens: Count = 0
    """Prompt tokens the servers found in their cache."""
    sample_tokens: Count = 0
    """Tokens sampled."""
    train_tokens: Count = 0
    """Tokens of trained rows, context and action."""
    discarded_tokens: Count = 0
    """Tokens of episodes that were retried, or whose group was abandoned; uniform groups are billed."""
    evaluation_tokens: Count = 0
    """Tokens of validation episodes: of prompts, with what the servers had cached, and sampled."""
    endpoint_tokens: Count = 0
    """Tokens of prompts and answers at endpoints outside the job, as those count them."""
    judge_tokens: Count = 0
    """Tokens of questions to judges and of their answers, as their endpoints count them."""
    sandbox_seconds: Decimal | None = None
    """Seconds sandboxes were in use."""
    accelerator_seconds: Decimal | None = None
    """Seconds accelerators were held, one for each of them, until the coordinator ended; accelerators has
    those of pods that ended after it too. Absent: none were."""
    cost: Money | None = None
    """Cost so far by the price book, without the classes in unpriced."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that were used and have no price in the price book: what they cost is not known. Of
    judges, endpoints and candidates of other models, CLASS:MODEL."""
    currency: Literal["USD"] = "USD"
    """Currency of cost."""
    price_book: Word | None = None
    """Price book used, with the date it is of: NAME@DATE."""
    price_book_hash: Word | None = None
    """The first 12 digits of the SHA-256 of all that the price book says."""
    price_corrections: Count = 0
    """Times that a changed price book changed what had been used before. Each stands under prices/ of
    status.artifacts.uri, with the cost before and after."""
    price_book_problem: Text | None = None
    """Why what the ConfigMap holds now is not in force. Absent: it is, or there is none."""

    @computed_field(description="Prefill, sample and train tokens together, and no others.")  # type: ignore[prop-decorator]
    @property
    def total_tokens(self) -> Count:
        return self.prefill_tokens + self.sample_tokens + self.train_tokens


class Estimate(StatusModel):
    """What the whole job will use and cost, what is spent included. docs/estimate.md explains it."""

    basis: Literal["Data", "Preflight", "Running"]
    """What it is made from. Data: rows, prompts and limits. Preflight: the preflight's episodes, of a
    training job. Running: what is spent, and the episodes played so far. In training recent ones weigh
    more."""
    time: datetime
    """When this basis began; while the job runs, the figures go on with it."""
    low: Money | None = None
    """US dollars that it costs at least, under the assumptions of docs/estimate.md. Absent where nothing can
    be told; message says why."""
    likely: Money | None = None
    """What it is likely to cost."""
    high: Money | None = None
    """What it costs at most."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that are not in the cost: they have no price, or nobody knows how much of them."""
    price_book: Word | None = None
    """Price book used, with the date it is of: NAME@DATE."""
    prefill_tokens: Count = 0
    """Likely prompt tokens that the servers compute. This and the next are as in usage."""
    cached_prefill_tokens: Count = 0
    """Prompt tokens that the servers find in their cache."""
    sample_tokens: Count = 0
    """Tokens sampled."""
    train_tokens: Count = 0
    """Tokens of trained rows."""
    discarded_tokens: Count = 0
    """Tokens of episodes that are retried, or whose group is abandoned."""
    evaluation_tokens: Count = 0
    """Tokens of validation, test, preflight and evaluation episodes."""
    endpoint_tokens: Count = 0
    """Tokens at endpoints outside the job."""
    judge_tokens: Count = 0
    """Tokens of questions to judges and of their answers."""
    sandbox_seconds: Decimal | None = None
    """Seconds sandboxes are in use."""
    accelerator_seconds: Decimal | None = None
    """Seconds accelerators are held, of those that the spec asks for by name."""
    seconds: Count | None = None
    """Likely seconds from the first episode to the end. Absent before any was played."""
    episodes: Count = 0
    """Episodes that were measured for it."""
    message: Text | None = None
    """Why it says nothing, or no more than it does."""


class BudgetLimit(StatusModel):
    """One limit of spec.budget, or of what the namespace's RLBudget grants: US dollars, or tokens of a
    class."""

    name: Word
    """`usd`, or `tokens.` and the class; of a grant with `namespace.` before it."""
    limit: Word
    """The most that may be used."""
    spent: Word
    """What the ledger says was used."""
    reserved: Word
    """What runs may use beyond that, at worst."""
    left: Word
    """What neither is spent nor reserved."""
    needed: Word | None = None
    """The least limit with which the job goes on. Absent: this limit does not stop it."""
    wished: Word | None = None
    """Of a grant: what the job would use if it had it. Absent: it has enough."""


class Budget(StatusModel):
    """How far the limits of spec.budget, and what the namespace grants, are used up. docs/budget.md explains
    it."""

    limits: Annotated[
        list[BudgetLimit], Field(max_length=24, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """Each limit of spec.budget, and of the grant."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that usd does not bound, since they have no price in the price book."""
    exhausted_time: datetime | None = None
    """When it was found that nothing runs and nothing more fits. Absent: the job goes on."""
    closed: bool | None = None
    """Whether its coordinator has ended in order, so that nothing is used beyond what is said here. Absent:
    one runs, or may have ended without a word."""
