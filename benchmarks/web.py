"""Translation in WebAssembly, in Node.js 24: ours, Bergamot's, fxtranslate's and ONNX Runtime's (transformers.js).

    npm install --ignore-scripts @browsermt/bergamot-translator fxtranslate onnxruntime-web     # in PACKAGES
    python -m benchmarks.web MODELS LINES --packages PACKAGES --node NODE --text EN DE

Random models of the size of Firefox's tiny11, in int8, with pieces learned from TEXT, are written to MODELS unless they
are there: with an SSRU in the decoder and with self-attention. Their translations never end and have words of one
piece, so that an engine's own limit decides their length, and the pieces of a text are its words. Each run is a new
process (`web.mjs`), and runs alternate. ONNX Runtime gets a row if MODELS/tiny11-attention/onnx has the graphs of
`relattn-mt export onnx`, quantized by `onnxruntime.quantization.quantize_dynamic`.
"""

import json
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from relattn_mt.bundle import quantize_bundle, read_bundle
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.tokens.tokenizer import SPACE_MARK, pieces_of, processor
from relattn_mt.web.export import export

from benchmarks.firefox import BANNED, SIZES, imported
from benchmarks.measure import Row, command, parse, record
from tests.support.firefox_models import random_model, train_vocabulary, write_bin

PIECES = 16_000  # a multiple of 8, which Bergamot requires
DECODERS = {"tiny11": "rnn", "tiny11-attention": "self-attention"}
CASES = [  # program, model, and the program's form of it
    ("relattn-mt relaxed", "tiny11", "web-7"),
    ("relattn-mt simd", "tiny11", "web-7"),
    ("relattn-mt relaxed, 8 bits", "tiny11", "web"),
    ("bergamot", "tiny11", "marian"),
    ("fxtranslate", "tiny11", "marian"),
    ("relattn-mt relaxed", "tiny11-attention", "web-7"),
    ("onnxruntime-web", "tiny11-attention", "onnx"),
]
FIGURES = {  # column -> figure of `web.mjs`, and how it is written
    "download_mb": ("download", 1e6, ".1f"),
    "first_cold_s": ("cold", 1, ".2f"),
    "first_warm_s": ("warm", 1, ".2f"),
    "peak_mib": ("peak", 1, ".0f"),
    "linear_memory_mib": ("memory", 1, ".0f"),
    "pieces_per_second_alone": ("alone", 1, ".0f"),
    "pieces_per_second_together": ("together", 1, ".0f"),
}


def prepare(models: Path, text: Sequence[Path]) -> None:
    """Write the models that are missing, in the format of each program."""
    models.mkdir(parents=True, exist_ok=True)
    vocabulary = models / "vocab.spm"
    if not vocabulary.exists():
        train_vocabulary(vocabulary, [line for file in text for line in read_lines(file)], PIECES)
    pieces = pieces_of(processor(vocabulary.read_bytes()))
    begins_word = np.array([piece.startswith(SPACE_MARK) and piece != SPACE_MARK for piece in pieces])
    dim, layers = SIZES["tiny11"]
    for name, decoder in DECODERS.items():
        folder = models / name
        if (folder / "web-7").exists():
            continue
        marian = folder / "marian"
        marian.mkdir(parents=True, exist_ok=True)
        sizes: dict[str, Any] = {"dim": dim, "inner": 1536, "layers": layers, "transformer_heads": 8}
        tensors, options = random_model(len(pieces), **sizes, transformer_decoder_autoreg=decoder)
        tensors["decoder_ff_logit_out_b"][0, ~begins_word] = BANNED
        write_bin(marian / "model.bin", tensors, options, int8=True)
        (marian / "vocab.spm").write_bytes(vocabulary.read_bytes())
        imported(marian, folder / "bundle")
        quantize_bundle(read_bundle(folder / "bundle"), folder / "bundle-7", overwrite=True)
        for suffix in ("", "-7"):
            export(read_bundle(folder / f"bundle{suffix}"), folder / f"web{suffix}")


def main() -> None:
    parser = command("web", __doc__)
    parser.add_argument("models", type=Path, help="folder of models")
    parser.add_argument("lines", type=Path, help="source lines; the first 40 are translated")
    parser.add_argument("--packages", type=Path, required=True, help="folder with node_modules")
    parser.add_argument("--node", default="node", help="Node.js (%(default)s)")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="files to learn the vocabulary from")
    parser.add_argument("--repeats", type=int, default=3, help="alternating runs; a row has the median (%(default)s)")
    given = parse(parser, "web-cpu.csv", threads=1)
    prepare(given.models, given.text)
    cases = [case for case in CASES if (given.models / case[1] / case[2]).exists()]
    script = Path(__file__).with_suffix(".mjs")
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(given.repeats):
        for program, model, form in cases:
            path = given.models / model / form
            arguments = [script, program.split(",")[0], path.resolve(), given.lines, given.packages.resolve()]
            process = subprocess.run([given.node, *map(str, arguments)], capture_output=True, text=True, check=True)
            result = json.loads(process.stdout)
            print(program, model, result, flush=True)
            runs = found.setdefault((program, model), [])
            runs.append(result)
            row: Row = {"engine": program, "model": model}
            for column, (name, unit, form_) in FIGURES.items():
                figures = [run[name] / unit for run in runs if run.get(name) is not None]
                row[column] = f"{statistics.median(figures):{form_}}" if figures else ""
            record(given, [row], ("engine", "model"))


if __name__ == "__main__":
    main()
