"""One process of `benchmarks.engines`. Only the package of an engine is imported, in the environment of that engine.

    python engine_process.py ENGINE MODEL LINES BEAM THREADS

An engine translates the first line, then all, and prints the time of the first translation in seconds since the epoch,
the source words per second and the peak memory in MiB. With LINES "serve", a server is started on the port BEAM.
"""

import os
import site
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Translate = Callable[[list[str]], list[str]]
BERGAMOT = """
models: [{weights}]
vocabs: [{vocabulary}, {vocabulary}]
beam-size: {beam}
normalize: 1.0
mini-batch: 64
maxi-batch: 1000
maxi-batch-sort: src
max-length-break: 128
mini-batch-words: 1024
workspace: 128
max-length-factor: 2.0
skip-cost: true
cpu-threads: 0
quiet: true
quiet-translation: true
gemm-precision: int8shiftAlphaAll
"""


def relattn_mt(model: str, beam: int, threads: int) -> Translate:
    import relattn_mt as package
    from relattn_mt.config import SearchConfig
    from relattn_mt.translate.options import TranslateOptions

    translator = package.load(model, threads=threads)
    options = TranslateOptions(search=SearchConfig(beam_size=beam))
    return lambda lines: translator.translate(lines, options)


def ctranslate2(model: str, beam: int, threads: int) -> Translate:
    import ctranslate2 as package
    from sentencepiece import SentencePieceProcessor

    translator = package.Translator(model, inter_threads=threads, intra_threads=1)
    tokenizer = SentencePieceProcessor(model_file=f"{model}/tokenizer.model")

    def translate(lines: list[str]) -> list[str]:
        tokens = [[*pieces, "</s>"] for pieces in tokenizer.encode(lines, out_type=str)]
        found = translator.translate_batch(tokens, beam_size=beam, max_batch_size=1024, batch_type="tokens")
        return tokenizer.decode([each.hypotheses[0] for each in found])

    return translate


def bergamot(model: str, beam: int, threads: int) -> Translate:
    package = types.ModuleType("bergamot")  # its own __init__ asks the network for a list of models
    package.__path__ = [f"{folder}/bergamot" for folder in site.getsitepackages()]
    sys.modules["bergamot"] = package
    import bergamot._bergamot as native

    weights, vocabulary = (next(Path(model).resolve().glob(name)) for name in ("*.bin", "*.spm"))
    service = native.Service(native.ServiceConfig(numWorkers=threads, cacheSize=0, logLevel="warn"))
    translator = service.modelFromConfig(BERGAMOT.format(weights=weights, vocabulary=vocabulary, beam=beam))

    def translate(lines: list[str]) -> list[str]:
        found = service.translate(translator, native.VectorString(lines), native.ResponseOptions())
        return [each.target.text for each in found]

    return translate


def install_argos(model: str, threads: int, beam: int) -> Any:
    """Install a package in an empty home, and return the module that translates. A line is one sentence."""
    home = tempfile.mkdtemp()
    os.environ.update(dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), home))
    os.environ.update(ARGOS_INTRA_THREADS=str(threads), ARGOS_BEAM_SIZE=str(beam))
    import argostranslate.package
    import argostranslate.translate

    class Sentences:  # the splitter's model would be downloaded
        def __init__(self, package: Any) -> None: ...

        def split_sentences(self, text: str) -> list[str]:
            return [text]

    argostranslate.translate.MiniSBDSentencizer = Sentences
    argostranslate.package.install_from_path(Path(model))
    return argostranslate.translate


def argos(model: str, beam: int, threads: int) -> Translate:
    module = install_argos(model, threads, beam)
    return lambda lines: [module.translate(line, "en", "de") for line in lines]


def serve(engine: str, model: str, port: str, threads: str) -> None:
    if engine == "libretranslate":
        install_argos(model, int(threads), 4)
        from libretranslate import init, main

        init.boot = lambda *given: None  # it would download models of other pairs

        sys.argv = [engine, "--host", "127.0.0.1", "--port", port, "--load-only", "en,de"]
        main()
    else:
        from relattn_mt.__main__ import main as command

        sys.argv = [engine, "serve", model, "--port", port, "--threads", threads, "--quiet"]
        command()


def main() -> None:
    engine, model, text, beam, threads = sys.argv[1:]
    if text == "serve":
        serve(engine, model, beam, threads)
        return
    engines = {"relattn-mt": relattn_mt, "ctranslate2": ctranslate2, "bergamot": bergamot, "argos": argos}
    translate = engines[engine](model, int(beam), int(threads))
    lines = Path(text).read_text(encoding="utf-8").splitlines()
    translate(lines[:1])
    first, start = time.time(), time.perf_counter()
    answers = translate(lines)
    speed = sum(len(line.split()) for line in lines) / (time.perf_counter() - start)
    assert len(answers) == len(lines)
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    print(first, speed, peak)


if __name__ == "__main__":
    main()
