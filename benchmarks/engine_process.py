"""One process of `benchmarks.engines` or `benchmarks.firefox`. Only the package of one engine is imported.

    python engine_process.py ENGINE MODEL LINES BEAM THREADS [ALONE]

An engine translates the first line, then ALONE lines one by one (if ALONE is given), and then all lines in one call. It
prints one line of JSON. With LINES "serve", a server is started on the port BEAM.

    first        time of the first translation, in seconds since the epoch
    processor    processor time until then, in seconds
    imports      that of the interpreter, and for relattn-mt of `import numpy, sentencepiece`
    alone        of lines one by one: source words and words of translations per second, and peak memory in MiB
    together     the same of all lines in one call; missing for an engine that translates single lines
    translations of the lines one by one, or else of all lines in one call
"""

import json
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
vocabs: [{source}, {target}]
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
gemm-precision: {precision}
"""


def marian_files(model: str) -> tuple[Path, Path, Path, Path | None]:
    """Return the weights, the vocabularies and the shortlist, which may be missing, in a directory of Marian."""
    folder = Path(model).resolve()
    vocabularies = sorted(folder.glob("*.spm"))  # srcvocab before trgvocab
    return folder / "model.bin", vocabularies[0], vocabularies[-1], next(folder.glob("lex*.bin"), None)


def relattn_mt(model: str, beam: int, threads: int) -> Translate:
    from dataclasses import replace

    import relattn_mt as package
    from relattn_mt.translate.options import TranslateOptions

    translator = package.load(model, threads=threads)
    options = TranslateOptions(search=replace(translator.search, beam_size=beam))
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

    weights, source, target, shortlist = marian_files(model)
    settings = "".join(file.read_text() for file in weights.parent.glob("config*.yml"))
    precision = "float32" if "gemm-precision: float32" in settings else "int8shiftAlphaAll"
    config = BERGAMOT.format(weights=weights, source=source, target=target, beam=beam, precision=precision)
    service = native.Service(native.ServiceConfig(numWorkers=threads, cacheSize=0, logLevel="warn"))
    translator = service.modelFromConfig(config + (f"shortlist: [{shortlist}, false]\n" if shortlist else ""))

    def translate(lines: list[str]) -> list[str]:
        found = service.translate(translator, native.VectorString(lines), native.ResponseOptions())
        return [each.target.text for each in found]

    return translate


def fxtranslate(model: str, beam: int, threads: int) -> Translate:
    from fxtranslate import Translator

    weights, source, target, shortlist = marian_files(model)
    parts = [file.read_bytes() for file in (weights, source, target)]
    translator = Translator(*parts, shortlist.read_bytes() if shortlist else None)
    return lambda lines: [translator.translate(line) for line in lines]


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


def measure(translate: Translate, calls: list[list[str]]) -> tuple[dict[str, float], list[str]]:
    """Return the words per second of source and translation and the peak memory in MiB, and the translations."""
    start = time.perf_counter()
    translations = [translation for call in calls for translation in translate(call)]
    seconds = time.perf_counter() - start
    sources = [line for call in calls for line in call]
    assert len(translations) == len(sources)
    words, written = (sum(len(line.split()) for line in side) for side in (sources, translations))
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    return {"words": words / seconds, "written": written / seconds, "peak": peak}, translations


def main() -> None:
    engine, model, text, beam, threads, *alone = sys.argv[1:]
    if text == "serve":
        serve(engine, model, beam, threads)
        return
    engines = {
        "relattn-mt": relattn_mt,
        "ctranslate2": ctranslate2,
        "bergamot": bergamot,
        "fxtranslate": fxtranslate,
        "argos": argos,
    }
    if engine == "relattn-mt":
        import numpy as numpy
        import sentencepiece as sentencepiece
    imports = time.process_time()
    translate = engines[engine](model, int(beam), int(threads))
    lines = Path(text).read_text(encoding="utf-8").splitlines()
    translate(lines[:1])
    result: dict[str, Any] = {"first": time.time(), "processor": time.process_time(), "imports": imports}
    if alone:  # first, because the peak of a process never falls
        result["alone"], result["translations"] = measure(translate, [[line] for line in lines[: int(alone[0])]])
    if engine != "fxtranslate":
        result["together"], translations = measure(translate, [lines])
        result.setdefault("translations", translations)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
