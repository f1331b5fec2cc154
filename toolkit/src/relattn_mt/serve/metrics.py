"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from relattn_mt.serve.limits import Limits


class Metrics:
    """Metrics of one server, in a separate registry. Each histogram ends at the highest value that limits allow."""

    def __init__(self, limits: Limits) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "relattn_requests", "Number of requests by route and status", ["route", "status"], registry=registry
        )
        ends = [step * 10**k for k in range(-3, 5) for step in (1, 2.5, 5)]
        most_seconds = 2 * limits.seconds  # to receive a request, and to answer it
        self.seconds = Histogram(
            "relattn_request_seconds",
            "Duration of a request",
            ["route"],
            buckets=[*(end for end in ends if end < most_seconds), most_seconds],
            registry=registry,
        )
        self.characters = Counter("relattn_characters", "Number of characters to translate", registry=registry)
        self.batch_sentences = Histogram(
            "relattn_batch_sentences",
            "Number of sentences in a batch",
            buckets=[*(2**k for k in range((limits.batch - 1).bit_length())), limits.batch],
            registry=registry,
        )
        self.waiting = Gauge("relattn_waiting_sentences", "Number of sentences waiting for a model", registry=registry)
