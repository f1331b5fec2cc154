"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """Metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "relattn_requests", "Number of requests by route and status", ["route", "status"], registry=registry
        )
        self.seconds = Histogram("relattn_request_seconds", "Duration of a request", ["route"], registry=registry)
        self.characters = Counter("relattn_characters", "Number of characters to translate", registry=registry)
        self.batch_sentences = Histogram(
            "relattn_batch_sentences",
            "Number of sentences in a batch",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=registry,
        )
        self.waiting = Gauge("relattn_waiting_sentences", "Number of sentences waiting for a model", registry=registry)
