"""Connects the servers that sample held-out rows while training goes on."""

from __future__ import annotations

from typing import Final

import aiohttp

from headway_api.config import JobConfig
from headway_api.model_names import VALIDATION
from headway_coordinator.adaptive_semaphore import AdaptiveSemaphore
from headway_coordinator.engines.discovery import Discover
from headway_coordinator.engines.fleet import Fleet
from headway_coordinator.episode_runners import EpisodeRunners
from headway_coordinator.validations import ConcurrentValidation

NOT_VALIDATING: Final = "no validation is under way"


def validation_servers(
    job: JobConfig,
    http: aiohttp.ClientSession,
    key: str,
    episode_runners: EpisodeRunners,
    discover: Discover,
    discover_validation: Discover,
    replicas: int,
) -> ConcurrentValidation | None:
    """What samples validations beside training. None if training waits while its own servers sample them."""
    spec = job.spec
    if spec.has_validation_server:
        own = Fleet(http, key, discover_validation, unannounced=NOT_VALIDATING)
        own_room = AdaptiveSemaphore(spec.validation_episodes)
        return ConcurrentValidation(own, episode_runners.on(own, own_room), own_room)
    if job.validates_beside:
        slot = Fleet(http, key, discover, slot=VALIDATION, unannounced=NOT_VALIDATING)
        slot.router.replicas = replicas
        return ConcurrentValidation(slot, episode_runners.sharing(slot))
    return None
