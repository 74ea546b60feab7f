"""How this process resolves the names of its job's Services: by the DNS, or by a file of hosts."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from headway_api import names

NO_NAME: Final = "no line of the hosts file has this name"


def hosts_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file that replaces the DNS, if there is one."""
    found = environ.get(names.ENV_HOSTS)
    return None if found is None else Path(found)


async def addresses(host: str, file: Path | None) -> list[str]:
    """The addresses of a name.

    Raises:
        socket.gaierror: EAI_NONAME if the name has no address, EAI_AGAIN if that cannot be found out now.
    """
    if file is None:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in found]
    if not (listed := _listed(host, file)):
        raise socket.gaierror(socket.EAI_NONAME, f"{host}: {NO_NAME}")
    return listed


def _listed(host: str, file: Path) -> list[str]:
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError as error:
        raise socket.gaierror(socket.EAI_AGAIN, f"{file}: {error}") from error
    return [line[0] for line in lines if host in line[1:]]


class HostsResolver(AbstractResolver):
    """Resolves names from the file, and all others by the DNS."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._others = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a name. The file is read each time: a restarted process may have a new address."""
        if not (found := _listed(host, self._file)):
            return await self._others.resolve(host, port, family)
        return [_result(host, address, port) for address in found]

    async def close(self) -> None:
        """Close the resolver of the other names. The file is not held open."""
        await self._others.close()


def _result(host: str, address: str, port: int) -> ResolveResult:
    return ResolveResult(
        hostname=host,
        host=address,
        port=port,
        family=socket.AF_INET,
        proto=0,
        flags=socket.AI_NUMERICHOST,
    )
