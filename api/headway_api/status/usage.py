"""Tokens used, what they cost, the estimate, and what is left of the budget."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, computed_field

from headway_api.base import StatusModel
from headway_api.field_types import Count, Decimal, Money, Word
from headway_api.status.common import Text, list_map


class Usage(StatusModel):
    """What the job has used and what that costs. The ledger in spec.output is the source."""

    prefill_tokens: Count = 0
    """Prompt tokens that the servers computed."""
    cached_prefill_tokens: Count = 0
    """Prompt tokens that the servers found in their cache."""
    sample_tokens: Count = 0
    """Tokens sampled."""
    train_tokens: Count = 0
    """Tokens of trained rows, context and action."""
    discarded_tokens: Count = 0
    """Tokens of episodes that were retried, or whose group was abandoned. Uniform groups are billed."""
    evaluation_tokens: Count = 0
    """Tokens of validation, test, preflight and evaluation episodes: prompt tokens, cached ones included, and
    sampled tokens."""
    endpoint_tokens: Count = 0
    """Tokens of prompts and answers at endpoints outside the job, as those endpoints count them."""
    judge_tokens: Count = 0
    """Tokens of questions to judges and of their answers, as their endpoints count them."""
    sandbox_seconds: Decimal | None = None
    """Seconds that sandboxes were in use."""
    accelerator_seconds: Decimal | None = None
    """Seconds that accelerators were held, summed over accelerators, until the coordinator ended.
    status.accelerators also counts pods that ended later. Absent: none were held."""
    cost: Money | None = None
    """Cost so far by the price book, without the classes in unpriced."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage without a price in the price book, so their cost is unknown. Usage of judges,
    endpoints and candidates of other models is named CLASS:MODEL."""
    currency: Literal["USD"] = "USD"
    """Currency of cost."""
    price_book: Word | None = None
    """Price book used, with its date: NAME@DATE."""
    price_book_hash: Word | None = None
    """The first 12 digits of the SHA-256 of the price book's whole content."""
    price_corrections: Count = 0
    """How often a changed price book changed earlier costs. Each change is recorded under prices/ of
    status.artifacts.uri, with the cost before and after."""
    price_book_problem: Text | None = None
    """Why the ConfigMap's present content is not used. Absent: it is used, or there is none."""

    @computed_field(description="Prefill, sample and train tokens together, and no others.")  # type: ignore[prop-decorator]
    @property
    def total_tokens(self) -> Count:
        return self.prefill_tokens + self.sample_tokens + self.train_tokens


class Estimate(StatusModel):
    """What the whole job will use and cost, past usage included. docs/estimate.md explains it."""

    basis: Literal["Data", "Preflight", "Running"]
    """What the estimate is based on. Data: rows, prompts and limits. Preflight: the preflight's episodes, for
    a training job. Running: what is spent, and the episodes so far. In training, recent episodes weigh
    more."""
    time: datetime
    """When the coordinator first made an estimate on this basis. The numbers keep changing while the job
    runs."""
    low: Money | None = None
    """US dollars that the job costs at least, under the assumptions of docs/estimate.md. Absent if nothing
    can be estimated; message says why."""
    likely: Money | None = None
    """What the job is likely to cost."""
    high: Money | None = None
    """What the job costs at most."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that the cost leaves out, because they have no price or their amount is unknown."""
    price_book: Word | None = None
    """Price book used, with its date: NAME@DATE."""
    prefill_tokens: Count = 0
    """Likely prompt tokens that the servers compute. This and the next fields count as those of usage do."""
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
    """Seconds that sandboxes are in use."""
    accelerator_seconds: Decimal | None = None
    """Seconds that accelerators are held. Only those that the spec requests by name count."""
    seconds: Count | None = None
    """Likely seconds from the first episode to the end. Absent before the first episode."""
    episodes: Count = 0
    """Episodes that the estimate is based on."""
    message: Text | None = None
    """Why there is no estimate, or only a partial one."""


class BudgetLimit(StatusModel):
    """One limit of spec.budget, or of what the namespace's RLBudget grants: US dollars, or tokens of a
    class."""

    name: Word
    """`usd`, or `tokens.` and the class. A grant's limit has `namespace.` before this name."""
    limit: Word
    """The most that may be used."""
    spent: Word
    """What was used, by the ledger."""
    reserved: Word
    """The most that running work may still use."""
    left: Word
    """The rest: limit - spent - reserved."""
    needed: Word | None = None
    """The lowest limit with which the job can continue. Absent: this limit does not stop it."""
    wished: Word | None = None
    """For a grant: the limit that the job asks the RLBudget for. Absent: the grant is enough."""


class Budget(StatusModel):
    """How much of the limits of spec.budget, and of the namespace's grant, is used. docs/budget.md explains
    it."""

    limits: Annotated[
        list[BudgetLimit], Field(max_length=24, default_factory=list, json_schema_extra=list_map("name"))
    ]
    """Each limit of spec.budget, and of the grant."""
    unpriced: Annotated[list[Word], Field(max_length=16, default_factory=list)]
    """Classes of usage that usd does not bound, because the price book has no price for them."""
    exhausted_time: datetime | None = None
    """When the coordinator found that nothing runs and nothing more fits. Absent: the job continues."""
    closed: bool | None = None
    """Whether the coordinator shut down properly, so that this usage is final. Absent: a coordinator runs, or
    may have ended without a final report."""
