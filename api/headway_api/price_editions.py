"""The editions of a job's price book, as stored in the artifact store (`prices/000001.json`)."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from headway_api.prices import PriceBook


class Edition(BaseModel):
    """One edition of a job's price book, and how it changed the bill when it took effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int
    """Counted from 1."""
    at: datetime
    """When it took effect. The time has no influence on prices."""
    digest: str
    """`PriceBook.digest`."""
    book: PriceBook
    before: str | None = None
    """US dollars that all usage so far cost by the edition before. None: nothing was corrected."""
    after: str | None = None
    """US dollars that the same usage costs by this edition. None: nothing was corrected."""
