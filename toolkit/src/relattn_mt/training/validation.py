"""Validation: loss and BLEU."""

from __future__ import annotations

from dataclasses import replace

import torch

from relattn_mt.data.encode import ValidationSet
from relattn_mt.engine.decoder import NativeDecoder, unsupported_reason
from relattn_mt.engine.engine import NativeEngine
from relattn_mt.evaluation import score
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.search.engine import Engine
from relattn_mt.training.journal import Validated
from relattn_mt.training.objective import summed_loss
from relattn_mt.training.run import Run
from relattn_mt.translate.translator import Translator


def validate(run: Run, valid: ValidationSet, device: torch.device) -> Validated:
    """Measure the loss on a validation set, without smoothing, and the BLEU of greedy translations of some lines."""
    recipe = run.recipe
    bleu = None
    pairs = valid.pairs[: recipe.train.valid_bleu_lines]
    run.model.eval()
    with torch.inference_mode():
        losses = sum(float(summed_loss(run.model, batch.to(device))) for batch in valid.batches)
        if pairs:
            tokenizer = run.data.tokenizer.with_languages(*valid.languages)
            search = replace(recipe.search, beam_size=1)
            translator = Translator(engine_of(run.model, device), tokenizer, search)
            sources, references = zip(*pairs, strict=True)
            bleu = score(translator.translate(sources), references).bleu
    run.model.train()
    loss = losses / sum(batch.target_tokens for batch in valid.batches)
    return Validated(valid.name, loss, bleu)


def engine_of(model: Transformer, device: torch.device | str = "cpu") -> Engine:
    """Return the compiled engine for a model whose weights do not change, or PyTorch if it does not support these."""
    dtype = str(model.embedding.dtype).removeprefix("torch.")
    reason = unsupported_reason(model.config, str(device), dtype)
    if reason is not None:
        return TorchEngine(model, device, reason)
    return NativeEngine(NativeDecoder(model.config, model.vocab_sizes, arrays_of(model), int8=False))
