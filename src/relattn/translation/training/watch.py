"""What happens between the steps of a run: the log, validation, checkpoints, and stopping, early or when asked to."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import lightning
import torch

from relattn.translation.config import as_dict
from relattn.translation.data.datamodule import TranslationData
from relattn.translation.evaluation import score
from relattn.translation.search.translator import Translator
from relattn.translation.training import checkpoints
from relattn.translation.training.journal import Journal
from relattn.translation.training.task import TranslationTask, first_process, summed_loss


class Watch(lightning.Callback):
    """Looks at a run after every step.

    Args:
        task: the task being trained.
        data: its data, for validation.
        out: directory of the run.
        state: content of the checkpoint the run goes on from, if it does.
        show: progress on standard error.
    """

    def __init__(
        self, task: TranslationTask, data: TranslationData, out: Path, state: dict[str, Any] | None, *, show: bool
    ) -> None:
        self.recipe, self.data, self.out = task.recipe, data, out
        self.valid_batches = data.valid_batches()
        self.best = math.inf if state is None else state["best"]
        self.waited = 0 if state is None else state["waited"]
        self.stop_asked = False  # of this process, by a signal
        self.stopped = False  # of all processes, after a step
        self.journal: Journal | None = None  # the first process alone keeps one, and writes checkpoints
        if first_process():
            self.journal = Journal(out / "log.csv", step=task.step, steps=task.recipe.train.steps, show=show)

    @property
    def out_of_patience(self) -> bool:
        """Whether validation has not improved for as long as the recipe waits."""
        return 0 < self.recipe.train.patience <= self.waited

    def on_train_batch_start(self, trainer: lightning.Trainer, task: Any, batch: Any, batch_idx: int) -> None:
        if self.journal is not None:
            self.journal.start_clock()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        train, step = self.recipe.train, task.step
        done = step >= train.steps
        if self.journal is not None:
            self.journal.count(*task.last)
        validating = step % train.valid_every == 0 or done
        valid_loss = valid_bleu = None
        if validating:
            self.stop_clock()
            valid_loss, valid_bleu = self.validate(task)
        if self.journal is not None and (step % train.log_every == 0 or validating):
            self.stop_clock()
            row = self.journal.row(step, task.optimizer.param_groups[0]["lr"], valid_loss, valid_bleu)
            for logger in trainer.loggers:
                logger.log_metrics(row.metrics(), step)
        self.stopped = trainer.strategy.reduce_boolean_decision(self.stop_asked, all=False)
        trainer.should_stop = self.stopped or self.out_of_patience
        if step % train.checkpoint_every == 0 or done or trainer.should_stop:
            self.save(task)

    def validate(self, task: TranslationTask) -> tuple[float | None, float | None]:
        """Loss in nats a target token, and BLEU of greedy translations of the first validation lines, where wanted."""
        if not self.valid_batches:
            return None, None
        model = task.model.eval()
        with torch.inference_mode():
            losses = sum(float(summed_loss(model, batch.to(task.device))) for batch in self.valid_batches)
            loss = losses / sum(batch.target_tokens for batch in self.valid_batches)
            pairs = self.data.valid_pairs[: self.recipe.train.valid_bleu_lines]
            bleu = None
            if pairs:
                greedy = replace(self.recipe.search, beam_size=1)
                translator = Translator(model, self.data.tokenizer, greedy, device=str(task.device))
                bleu = score(translator.translate([src for src, _ in pairs]), [tgt for _, tgt in pairs]).bleu
        model.train()
        self.waited = 0 if loss < self.best else self.waited + 1
        self.best = min(self.best, loss)
        return loss, bleu

    def save(self, task: TranslationTask) -> None:
        """Write a checkpoint of the task as it stands."""
        if self.journal is None:
            return
        self.stop_clock()
        content = {
            "recipe": as_dict(self.recipe),
            "position": task.position,
            "best": self.best,
            "waited": self.waited,
            "model": task.model.state_dict(),
            "optimizer": task.optimizer.state_dict(),
        }
        train = self.recipe.train
        checkpoints.save(self.out / "checkpoints", task.step, content, keep=train.keep, every=train.checkpoint_every)

    def stop_clock(self) -> None:
        """Time from here until the next step begins is not training's."""
        if self.journal is not None:
            self.journal.stop_clock()

    def on_fit_end(self, trainer: lightning.Trainer, task: Any) -> None:
        if self.journal is not None:
            self.journal.close()

    @contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Let the first Ctrl-C or SIGTERM end training after the step in hand; a second one acts at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.stop_asked = True
            signal.signal(number, before[number])

        before: dict[int, Any] = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
