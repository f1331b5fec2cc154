"""Interface of the engines that run a model, from token ids to log-probabilities and attention weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from relattn_mt.search.types import Hypotheses, Request, SearchRules
from relattn_mt.support.types import IdRows


class NextTokens(NamedTuple):
    """Probabilities of the token that follows each row.

    The log-probability of a token is its logit minus the log-sum, in float32.

    Attributes:
        values: (rows, k) log-probabilities of the k likeliest tokens that are not banned, in falling order.
        tokens: (rows, k) these tokens.
        log_sums: (rows,) log of the sum of exp(logit) over all tokens; NaN if the model diverged.
        logits: Function that returns the logits (rows, vocab), at once if it is called again.
    """

    values: np.ndarray
    tokens: np.ndarray
    log_sums: np.ndarray
    logits: Callable[[], np.ndarray]


class Engine(Protocol):
    """A model on some device. Several threads may use it.

    Sources and targets are complete sequences with their special tokens: targets have the first token that the decoder
    reads and the end. Results for a sentence do not depend on the others of a call.

    Attributes:
        name: What runs the model, and why nothing faster does, in one line.
        precision: "fp32", "bf16" or "int8".
        device: Name of the device.
        max_length: Longest sequence that the model can hold; None if unlimited.
        knows_alignment: Whether the configuration of the model says which attention weights align words.
    """

    name: str
    precision: str
    device: str
    max_length: int | None
    knows_alignment: bool

    def search(self, requests: Sequence[Request], rules: SearchRules) -> Hypotheses:
        """Return the `rules.n_best` best hypotheses of each request, best first, as `beam.search` defines them.

        Raises:
            InputError: The engine does not support the rules or the requests.
        """

    def start(self, sources: IdRows, capacity: int) -> Any:
        """Return the state before the first token, with one row per source, for at most `capacity` tokens."""

    def step(self, state: Any, tokens: Sequence[int], rows: Sequence[int], rules: SearchRules, k: int) -> NextTokens:
        """Append a token to some rows, and return the probabilities of the next ones.

        Args:
            state: State, which is changed: afterwards its rows are the given ones.
            tokens: Token of each row.
            rows: Row of the state that each token extends; one may occur several times or not at all. Rows that stay in
                their places are not copied.
            rules: What is constant during the search.
            k: Number of likeliest tokens.
        """

    def score(self, sources: IdRows, targets: IdRows) -> list[list[float]]:
        """Return the log-probability, in nats, of each token of the targets after the first one."""

    def align(self, sources: IdRows, targets: IdRows) -> list[np.ndarray]:
        """Return the attention weights (target tokens − 1, source tokens) with which the tokens are predicted.

        They are those of the layer and the heads of `ModelConfig.alignment`. The row of the end may be missing.
        """
