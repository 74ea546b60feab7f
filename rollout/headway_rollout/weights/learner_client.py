"""The rollout server's client of the learner, for weights that come from the learner's memory.

The calls are those of `headway_api.weights_direct`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from headway_api import bounds
from headway_api.bounds import OutOfBoundsError, json_within, shortened
from headway_api.record import explained
from headway_api.records import DirectSource
from headway_api.weights_direct import DirectHeader, DirectJoin, DirectPlace, header_path, join_path
from headway_rollout.engine import Engine, LearnerNotMetError
from headway_rollout.weights.checks import TensorHeader, UnusableManifestError, check_full
from headway_wire.contents import content, start

HEADER_FILE: Final = "header.json"
"""File that a version's folder has instead of weights, if the learner sends the weights to the engine."""
ASK_SECONDS: Final = 30.0
SHOWN_CHARACTERS: Final = 500
"""Maximum characters of a refusal that an error repeats."""


class LearnerUnavailableError(Exception):
    """The learner did not answer, or refused."""


@dataclass(frozen=True)
class LearnerClient:
    """Asks for weights on behalf of this server's engine."""

    http: aiohttp.ClientSession
    key: str
    join: DirectJoin
    """Describes this engine's workers to the learner."""

    async def meet(
        self, source: DirectSource, folder: Path, engine: Engine, expected: Mapping[str, TensorHeader]
    ) -> None:
        """Make the engine meet the learner, and write the weights' header into `folder`.

        The learner then waits until the engine is ready to receive weights.

        Raises:
            LearnerNotMetError: the learner is unavailable, or now offers other weights.
            UnusableManifestError: the learner's header does not match the manifest, or not this model.
        """
        where = f"http://{source.host}:{source.port}"
        try:
            header = DirectHeader.model_validate(await self._call("GET", where + header_path(source.header)))
            if header.sha256 != source.header:
                raise UnusableManifestError(
                    f"the learner's header has sha256 {header.sha256}, not {source.header}"
                )
            check_full(expected, {t.name: TensorHeader(t.dtype, tuple(t.shape)) for t in header.tensors})
            body = self.join.model_dump()
            place = DirectPlace.model_validate(
                await self._call("POST", where + join_path(source.header), body)
            )
        except ValidationError as error:
            raise LearnerNotMetError(
                f"the learner's answer about weights cannot be read: {explained(error)}"
            ) from error
        except LearnerUnavailableError as error:
            raise LearnerNotMetError(f"the learner offers no weights: {error}") from error
        await engine.join(source.host, place)
        # `FullLoader.load` takes the weights from the learner if the folder has a header.
        await asyncio.to_thread(_write, folder, header)

    async def _call(self, method: str, url: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.key}", "Accept-Encoding": "identity"}
        limit = aiohttp.ClientTimeout(total=ASK_SECONDS)
        # A redirect would carry the key to another host.
        options: dict[str, Any] = {"headers": headers, "timeout": limit, "allow_redirects": False}
        options["auto_decompress"] = False  # refuse a compressed answer: the request asks for a plain one
        try:
            async with self.http.request(method, url, json=body, **options) as response:
                if response.status >= 300:
                    answer = (await start(response, SHOWN_CHARACTERS)).decode(errors="replace")
                    text = shortened(answer, SHOWN_CHARACTERS)
                    raise LearnerUnavailableError(f"{method} {url}: {response.status}: {text}")
                data = await content(response, bounds.REPORT)
                return await asyncio.to_thread(json_within, data, bounds.REPORT)
        except TimeoutError as error:
            raise LearnerUnavailableError(f"{method} {url}: no answer within {ASK_SECONDS:.0f} s") from error
        except OutOfBoundsError as error:
            raise LearnerUnavailableError(f"{method} {url}: the answer cannot be read: {error}") from error
        except aiohttp.ClientError as error:
            raise LearnerUnavailableError(f"{method} {url}: {type(error).__name__}: {error}") from error


def _write(folder: Path, header: DirectHeader) -> None:
    folder.mkdir(parents=True)
    (folder / HEADER_FILE).write_text(header.model_dump_json())
