"""What a server says of itself to Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from relattn.translation.serve.models import Models


class Measures:
    """Counts of what a server does.

    Args:
        models: whose queues are looked at when they are asked for.
    """

    def __init__(self, models: Models) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "relattn_requests", "Requests by route and status", ["route", "status"], registry=self._registry
        )
        self.seconds = Histogram("relattn_request_seconds", "Time of a request", ["route"], registry=self._registry)
        self.characters = Counter("relattn_characters", "Characters translated", registry=self._registry)
        together = Histogram(
            "relattn_batch_sentences",
            "Sentences translated together",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self._registry,
        )
        waiting = Gauge("relattn_waiting_sentences", "Sentences that wait for a model", registry=self._registry)
        queues = [queue for model in models.by_pair.values() for queue in model.queues]
        waiting.set_function(lambda: sum(queue.waiting for queue in queues))
        for queue in queues:
            queue.told = together.observe

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)
