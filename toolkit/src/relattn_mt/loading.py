"""Load a translator from a bundle or from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from relattn_mt.hub import resolve_route
from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.support.files import file_digest
from relattn_mt.support.processor import cores
from relattn_mt.translate import Precision
from relattn_mt.translate.translator import Translator

MOST_THREADS = 1024


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    precision: Precision | None = None,
    threads: int | None = None,
    src_lang: str = "",
    tgt_lang: str = "",
) -> Translator:
    """Load a translator: ``load("my-bundle").translate(["A sentence."])``. Loading runs no code from a model.

    Args:
        path: Directory of a bundle; or ``"everyday-en-de"``, the model of this package; or the name of a bundle on the
            Hugging Face hub: ``"org/name"`` or, with a branch, tag or commit, ``"org/name@v1.0"``; or a model of
            Firefox: ``"firefox:en-de"``.
        device: Device to translate on: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.
        precision: ``"fp32"``, ``"bf16"`` or ``"int8"``. By default ``"fp32"``, and ``"int8"`` for a quantized bundle on
            a CPU. bf16 requires a GPU.
        threads: Number of CPU threads, each of which translates its own batches. By default, all cores.
        src_lang: Source language of a model of several languages. By default, the one of the bundle, or the only other
            one if `tgt_lang` is that language.
        tgt_lang: Target language. The default is chosen as for `src_lang`.

    Raises:
        InputError: a model is missing, damaged, of another version, cannot be downloaded, or does not
            translate these languages, or the device cannot be used.
    """
    require(threads is None or 1 <= threads <= MOST_THREADS, f"threads must be in [1, {MOST_THREADS}], got {threads}")
    *earlier, directory = resolve_route(path)
    is_foreign = (directory / "model.bin").exists()
    require(not is_foreign, f"{path}: is for CTranslate2 or Marian; convert it with `relattn-mt import`")
    from relattn_mt.bundle import read_bundle

    if device != "cpu":
        _require_device(device)
    bundle = read_bundle(directory)
    workers = threads or cores()
    translator = bundle.translator(device=device, precision=precision, workers=workers, torch_threads=threads)
    if earlier:
        translator = translator.after(load(earlier[0], device=device, precision=precision, threads=threads))
    return translator.with_languages(src_lang, tgt_lang)


def _require_device(device: str) -> None:
    """Raise an InputError unless PyTorch can use a device."""
    import torch

    try:
        torch.ones(1, device=device).item()
    except Exception as error:  # of many types; on "meta" a tensor has no values
        fault = one_line(str(error).partition("\n")[0], 120)
        raise InputError(f"device {device} cannot be used: {fault}") from error


def weights_digest(path: str) -> str:
    """Return the SHA-256 of the weights of a bundle, or those of two."""
    from relattn_mt.bundle import WEIGHTS

    return " ".join(file_digest(directory / WEIGHTS) for directory in resolve_route(path))
