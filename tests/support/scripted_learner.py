"""A learner that trains nothing: it takes batches and reports steps over the real API, with the same weights.

It follows a directive in its records only. Its reports state the settings in force. To restore, it goes back
to the first step named whose checkpoint is there. `refuses` makes it refuse some directives.

Every step is durable before the coordinator hears of it. The learner writes the checkpoint report,
`latest.json` and `steps/`, and only then reports the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp

from headway_api.artifacts import Layout
from headway_api.in_force import Directive, DirectiveRefusal, InForce
from headway_api.records import Batch, Finished, GroupRecord, StepReport, WeightsManifest
from headway_api.store import Store


def trained_tokens(group: GroupRecord) -> int:
    """Return the tokens of a group's rows; 0 if its rewards are all equal."""
    if len({episode.reward for episode in group.scored}) <= 1:
        return 0
    return sum(len(row.tokens) for episode in group.scored for row in episode.rows)


class ScriptedLearner:
    """A learner that trains nothing. It never blocks: every call is a coroutine."""

    def __init__(
        self,
        url: str,
        token: str,
        store: Store,
        layout: Layout,
        publish: Callable[[int], WeightsManifest],
    ) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._store = store
        self._layout = layout
        self._publish = publish
        self.metrics: Callable[[int, list[GroupRecord]], dict[str, float]] = lambda step, groups: {}
        """Returns the metrics that the learner reports for a step."""
        self.clock: Callable[[], float | None] = lambda: None
        """Returns the time at which the learner says that a step ended."""
        self.counted: Callable[[GroupRecord], int] = trained_tokens
        """Returns how many tokens of a group the learner says it trained."""
        self.batches: list[Batch] = []
        self.in_force = InForce()
        self.refuses: Callable[[Directive], bool] = lambda directive: False
        self.finished: Finished | None = None

    def resume(self) -> StepReport:
        """Return the report of the newest durable step; write step 0 if there is none."""
        try:
            step = json.loads(self._store.get(self._layout.latest))["step"]
        except KeyError:
            return self.commit(0, [])
        report = StepReport.model_validate_json(self._store.get(self._layout.checkpoint_report(step, 0)))
        self.in_force = report.in_force
        return report

    def does(self, batch: Batch) -> dict[str, Any]:
        """Do what a batch asks for besides training; return the fields that report it."""
        directive = batch.directive
        if directive is None:
            assert batch.groups
            self.in_force = batch.in_force
            return {}
        there = [step for step in directive.restore if step < batch.step and self._is_whole(step)]
        if self.refuses(directive):
            refused = DirectiveRefusal(reason="NotApplicable", message="it was told to refuse")
        elif batch.in_force.number <= self.in_force.number:
            refused = DirectiveRefusal(reason="TakenBefore", message=f"{self.in_force.number} is in force")
        elif directive.restore and not there:
            refused = DirectiveRefusal(
                reason="NothingToRestore", message=f"none of {directive.restore} is whole"
            )
        else:
            self.in_force = batch.in_force
            return {"directive": directive, "restored": there[0] if there else None}
        return {"directive": directive, "refused": refused}

    def _is_whole(self, step: int) -> bool:
        return bool(self._store.list(self._layout.checkpoint(step)))

    def commit(self, step: int, groups: list[GroupRecord], **fields: Any) -> StepReport:
        """Make a step durable."""
        manifest = self._publish(step)
        report = StepReport(
            step=step,
            version=manifest.version,
            groups=[group.group_id for group in groups],
            train_tokens={group.group_id: self.counted(group) for group in groups},
            weights=manifest,
            durable=step,
            metrics={"training/global_step": float(step)} | self.metrics(step, groups),
            in_force=self.in_force,
            ended_at=self.clock(),
            **fields,
        )
        body = report.model_dump_json().encode()
        self._store.put(self._layout.checkpoint_report(step, 0), body)
        self._store.put(self._layout.latest, json.dumps({"step": step}).encode())
        self._store.put(self._layout.step_history(step), body)
        return report

    async def announce(self, http: aiohttp.ClientSession, report: StepReport) -> None:
        url = f"{self._url}/v1/steps"
        async with http.post(url, data=report.model_dump_json(), headers=self._headers) as answer:
            assert answer.status == 204, await answer.text()

    async def take(self, http: aiohttp.ClientSession, step: int) -> Batch | Finished:
        """Poll until there is a batch, or until training is over."""
        while True:
            async with http.get(f"{self._url}/v1/batch?step={step}", headers=self._headers) as answer:
                text = await answer.text()
                if answer.status == 200:
                    return Batch.model_validate_json(text)
                if answer.status == 410:
                    return Finished.model_validate_json(text)
                assert answer.status == 204, text

    async def run(self, steps: int | None = None) -> None:
        """Train until the coordinator says that training is over, or for `steps` steps."""
        async with aiohttp.ClientSession() as http:
            report = self.resume()
            await self.announce(http, report)
            while steps is None or steps > 0:
                found = await self.take(http, report.step + 1)
                if isinstance(found, Finished):
                    self.finished = found
                    return
                self.batches.append(found)
                report = self.commit(found.step, found.groups, **self.does(found))
                await self.announce(http, report)
                steps = steps - 1 if steps is not None else None
