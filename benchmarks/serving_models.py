"""Measure the memory of a server with several models, before requests and after requests in all directions.

Five models of OPUS-MT's size (6 + 6 layers, d = 512, 58,101 pieces) translate one pair each, and a model of M2M-100's
class with these layers and 128,112 pieces serves all pairs of some languages. They are written by transformers with
random weights, and imported. The client is libretranslatepy.

    python -m benchmarks.serving_models LINES --precision fp32 int8

"mib_start" and "mib_used" are the resident memory of the server; "mib_weights" is the size of the files of the weights.
"""

import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from libretranslatepy import LibreTranslateAPI
from relattn_mt.bundle import WEIGHTS
from relattn_mt.formats.import_model import import_model
from relattn_mt.tokens.text_files import read_lines

from benchmarks.measure import Row, command, parse, record
from benchmarks.serving import serving, usage
from tests.support import transformers_models as models

PAIRS = [("en", "ru"), ("ru", "en"), ("en", "ja"), ("ja", "en"), ("en", "fi")]
LANGUAGES = ["en", "de", "fr", "es"]
SIZES: dict[str, Any] = {
    **{"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "max_position_embeddings": 512},
    **{f"{stack}_attention_heads": 8 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 2048 for stack in ("encoder", "decoder")},
}
LINES = 5  # per direction


def make_models(work: Path, lines: list[str]) -> None:
    """Write the models, of which none ends a translation by itself before 32 tokens."""
    options: dict[str, Any] = {**SIZES, "lines": lines, "vocab": 4000, "generation": {"max_length": 33}}
    models.marian(work / "marian", **options, fill=58_101, draw=(0.0, -5.0))
    models.m2m_100(work / "m2m", **options, fill=128_112, end=-5.0)
    for src_lang, tgt_lang in PAIRS:
        write_bundle(work / "marian", work / f"{src_lang}-{tgt_lang}", src_lang, tgt_lang)
    write_bundle(work / "m2m", work / "multilingual", *LANGUAGES[:2])


def write_bundle(model: Path, out: Path, src_lang: str, tgt_lang: str) -> None:
    import_model(model, out, tokenizer=None, tgt_tokenizer=None, src_lang=src_lang, tgt_lang=tgt_lang, sample=1)


def measure(paths: list[Path], languages: list[str], options: list[str], lines: list[str]) -> Row:
    """Start a server, translate in all directions, and return the columns of the row."""
    first, *others = paths
    flags = [*map(str, others), *(["--languages", *languages] if languages else []), *options]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log, serving(first, *flags, log=log) as (process, address):
        client = LibreTranslateAPI(address)
        listed = {each["code"]: each["targets"] for each in client.languages()}
        seconds, before = time.perf_counter() - began, usage(process)[1]
        pairs = [(source, target) for source, targets in listed.items() for target in targets if source != target]
        for source, target in pairs:
            for line in lines:
                assert isinstance(client.translate(line, source, target), str)
        after = usage(process)[1]
    weights = sum((path / WEIGHTS).stat().st_size for path in paths)
    row: Row = {"models": len(paths), "directions": len(pairs), "seconds_to_start": f"{seconds:.1f}"}
    return {**row, "mib_start": before, "mib_used": after, "mib_weights": weights >> 20}


def main() -> None:
    parser = command("serving_models", __doc__)
    parser.add_argument("text", type=Path, help="source lines, plain or .gz")
    parser.add_argument("--work", type=Path, default=Path("runs/serving_models"), help="directory for the models")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "int8"], default=["fp32", "int8"])
    given = parse(parser, "serving-models-cpu.csv", threads=1)
    lines = list(islice((line for line in read_lines(given.text) if line.strip()), 5000))
    if not given.work.exists():
        make_models(given.work, lines)
    single = [given.work / f"{src_lang}-{tgt_lang}" for src_lang, tgt_lang in PAIRS]
    several = given.work / "multilingual"
    for precision in given.precision:
        options = ["--threads", str(given.threads), "--precision", precision]
        for name, paths, languages in (
            ("five models", single, []),
            ("one model, two languages", [several], LANGUAGES[:2]),
            ("one model, four languages", [several], LANGUAGES),
            ("all six models", [*single, several], LANGUAGES),
        ):
            row: Row = {"name": name, "precision": precision, **measure(paths, languages, options, lines[:LINES])}
            record(given, [row], ("name", "precision"))


if __name__ == "__main__":
    main()
