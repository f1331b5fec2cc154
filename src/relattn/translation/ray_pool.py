"""Translate parts of a text on a Ray cluster, which starts processes, places them, and restarts those that are lost."""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from relattn.translation.errors import InputError, one_line, require, require_installed
from relattn.translation.loading import load, weights_digest
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import Translation, Translator

_RETRIES = 3  # of a part whose process was lost
_TIMEOUT = 10  # seconds to reach the cluster
_AHEAD = 2  # parts per process that wait or are translated


class _Worker:
    """A process of the cluster with a translator."""

    def __init__(self, bundle: str, arguments: dict[str, Any]) -> None:
        self.bundle, self.arguments = bundle, arguments

    @cached_property
    def translator(self) -> Translator:
        return load(self.bundle, **self.arguments)  # again after a restart

    def digest(self) -> str:
        return weights_digest(self.bundle)

    def translate(self, lines: list[str], options: TranslateOptions, first_line: int) -> list[list[Translation]]:
        return list(self.translator.stream([lines], options, first_line=first_line))


class RayPool:
    """Processes of a Ray cluster that translate, by default one per machine with all of its cores.

    Args:
        address: address of the cluster; "local" starts one on this machine.
        bundle: directory of the bundle, which all machines must see.
        threads: number of threads per process.
        arguments: other arguments of `load`.

    Raises:
        InputError: Ray is not installed, the cluster does not exist or cannot be used, or the bundle is missing on a
            machine.
    """

    def __init__(self, address: str, bundle: str, *, threads: int | None, **arguments: Any) -> None:
        require_installed("ray", extra="ray")
        import ray

        try:
            if match := re.fullmatch(r"(.+):(\d+)", address):  # Ray waits for minutes
                socket.create_connection((match[1], int(match[2])), _TIMEOUT).close()
            ray.init(address, log_to_driver=False, logging_level="ERROR")
            cores = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
        except Exception as error:  # of many types
            raise InputError(f"{one_line(address, 60)}: no usable Ray cluster: {one_line(error, 200)}") from error
        count = threads or min(filter(None, cores), default=1)
        places = sum(number // count for number in cores)
        require(places > 0, f"the Ray cluster must have a machine with {count} free cores, got {max(cores, default=0)}")
        worker = ray.remote(num_cpus=count, max_restarts=-1, max_task_retries=_RETRIES)(_Worker)
        path = str(Path(bundle).resolve()) if Path(bundle).exists() else bundle
        self.workers = [worker.remote(path, {**arguments, "threads": count}) for _ in range(places)]
        digests = {self._get(worker.digest.remote()) for worker in self.workers}
        require(digests == {weights_digest(bundle)}, "all machines of the Ray cluster must have the same bundle")

    def map(
        self, parts: Iterable[tuple[list[str], int]], options: TranslateOptions
    ) -> Iterator[list[list[Translation]]]:
        """Yield the translations of parts, in order. A part is lines and the number of the first."""
        waiting: deque[Any] = deque()
        for number, (lines, first_line) in enumerate(parts):
            worker = self.workers[number % len(self.workers)]
            waiting.append(worker.translate.remote(lines, options, first_line))
            if len(waiting) == _AHEAD * len(self.workers):
                yield self._get(waiting.popleft())
        while waiting:
            yield self._get(waiting.popleft())

    def _get(self, result: Any) -> Any:
        import ray

        try:
            return ray.get(result)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(f"on a machine of the Ray cluster: {error.cause}") from error
            raise
        except ray.exceptions.RayError as error:
            raise InputError(f"the Ray cluster lost a process: {one_line(error, 200)}") from error
