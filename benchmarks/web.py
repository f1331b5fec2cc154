"""Translation in WebAssembly, in Node.js: ours, Bergamot's, fxtranslate's, and transformers.js with its WebAssembly.

    npm install --ignore-scripts @browsermt/bergamot-translator fxtranslate @huggingface/transformers     # in PACKAGES
    python -m benchmarks.web MODELS LINES --packages PACKAGES --node NODE --optimum OPTIMUM --text EN DE

Random models are written to MODELS unless they are there, with pieces learned from TEXT: two of the size of Firefox's
tiny11, in int8, with an SSRU in the decoder and with self-attention, and one of the size of OPUS-MT, in the files of
transformers. OPTIMUM is the program `optimum-cli` of an environment with optimum-onnx, which exports the last one for
transformers.js; its weights are then quantized as transformers.js's own script does it. Translations never end and have
words of one piece, so that an engine's own limit decides their length, and the pieces of a text are its words. Each run
is a new process (`web.mjs`), and runs alternate.
"""

import json
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from relattn_mt.bundle import quantize_bundle, read_bundle
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.tokens.tokenizer import SPACE_MARK, pieces_of, processor
from relattn_mt.web.export import export

from benchmarks.firefox import BANNED, SIZES, imported
from benchmarks.measure import Row, command, parse, record
from tests.support.firefox_models import random_model, train_vocabulary, write_bin
from tests.support.transformers_models import marian

PIECES = 16_000  # a multiple of 8, which Bergamot requires
OPUS_PIECES = 58_101
OPUS: dict[str, Any] = {
    **{"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "max_position_embeddings": 512},
    **{f"{stack}_attention_heads": 8 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 2048 for stack in ("encoder", "decoder")},
}
OPUS_LENGTH = 32  # target pieces of a translation, with its first and last
DECODERS = {"tiny11": "rnn", "tiny11-attention": "self-attention"}
CASES = [  # program, model, and the program's form of it
    ("relattn-mt relaxed", "tiny11", "web-7"),
    ("relattn-mt simd", "tiny11", "web-7"),
    ("relattn-mt relaxed, 8 bits", "tiny11", "web"),
    ("bergamot", "tiny11", "marian"),
    ("fxtranslate", "tiny11", "marian"),
    ("relattn-mt relaxed", "tiny11-attention", "web-7"),
    ("relattn-mt relaxed", "opus-mt", "web-7"),
    ("relattn-mt simd", "opus-mt", "web-7"),
    ("transformers.js", "opus-mt", "transformers"),
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
    """Write the models of tiny11's size that are missing, in the format of each program."""
    vocabulary = models / "vocab.spm"
    if not vocabulary.exists():
        train_vocabulary(vocabulary, [line for file in text for line in read_lines(file)], PIECES)
    pieces = pieces_of(processor(vocabulary.read_bytes()))
    dim, layers = SIZES["tiny11"]
    for name, decoder in DECODERS.items():
        folder = models / name
        if (folder / "web-7").exists():
            continue
        marian = folder / "marian"
        marian.mkdir(parents=True, exist_ok=True)
        sizes: dict[str, Any] = {"dim": dim, "inner": 1536, "layers": layers, "transformer_heads": 8}
        tensors, options = random_model(len(pieces), **sizes, transformer_decoder_autoreg=decoder)
        tensors["decoder_ff_logit_out_b"][0, ~begins_word(pieces)] = BANNED
        write_bin(marian / "model.bin", tensors, options, int8=True)
        (marian / "vocab.spm").write_bytes(vocabulary.read_bytes())
        write_sites(marian, folder, "", "-7")


def begins_word(pieces: Sequence[str]) -> np.ndarray:
    return np.array([piece.startswith(SPACE_MARK) and piece != SPACE_MARK for piece in pieces])


def write_sites(model: Path, folder: Path, *suffixes: str) -> None:
    """Import a model, and export it: with its own weights (""), and with weights of 7 bits ("-7")."""
    imported(model, folder / "bundle")
    quantize_bundle(read_bundle(folder / "bundle"), folder / "bundle-7", overwrite=True)
    for suffix in suffixes:
        export(read_bundle(folder / f"bundle{suffix}"), folder / f"web{suffix}")


def prepare_opus(folder: Path, text: Sequence[Path], optimum: str) -> None:
    """Write the model of OPUS-MT's size unless it is there: for transformers.js, and for ours."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if (folder / "transformers/onnx").exists():
        return
    files = folder / "model"
    lines = [line for file in text for line in read_lines(file)]
    generation = {"num_beams": 1, "max_length": OPUS_LENGTH}
    model, tokenizer = marian(
        files, lines=lines, vocab=PIECES, fill=OPUS_PIECES, draw=(0.02, 0.0), generation=generation, **OPUS
    )
    pieces = tokenizer.convert_ids_to_tokens(range(OPUS_PIECES))
    model.final_logits_bias[0, torch.from_numpy(~begins_word(pieces))] = BANNED
    model.save_pretrained(files)
    write_sites(files, folder, "-7")
    out = folder / "transformers"
    task = ["--task", "text2text-generation-with-past"]
    subprocess.run([optimum, "export", "onnx", "--model", str(files), *task, str(out)], check=True)
    shutil.copy(files / "tokenizer_config.json", out)
    write_tokenizer(files, pieces, out / "tokenizer.json")
    graphs = out / "onnx"
    graphs.mkdir()
    for name in ("encoder_model", "decoder_model_merged"):
        subgraphs = {"EnableSubgraph": True}
        quantize_dynamic(
            out / f"{name}.onnx",
            graphs / f"{name}_quantized.onnx",
            weight_type=QuantType.QInt8,
            extra_options=subgraphs,
        )


def write_tokenizer(files: Path, pieces: Sequence[str], out: Path) -> None:
    """Write the tokenizer of a model as transformers.js reads it: pieces of the source with their scores."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    source = processor((files / "source.spm").read_bytes())
    known = {source.id_to_piece(i): source.get_score(i) for i in range(source.get_piece_size())}
    lowest = min(known.values()) - 10.0
    scores = [(piece, known.get(piece, 2 * lowest)) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=pieces.index("<unk>")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", pieces.index("</s>"))])
    tokenizer.add_special_tokens(["</s>", "<unk>", "<pad>"])
    tokenizer.save(str(out))


def main() -> None:
    parser = command("web", __doc__)
    parser.add_argument("models", type=Path, help="folder of models")
    parser.add_argument("lines", type=Path, help="source lines; the first 40 are translated")
    parser.add_argument("--packages", type=Path, required=True, help="folder with node_modules")
    parser.add_argument("--node", default="node", help="Node.js (%(default)s)")
    parser.add_argument(
        "--optimum", default="optimum-cli", help="program that exports for transformers.js (%(default)s)"
    )
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="files to learn the vocabulary from")
    parser.add_argument("--repeats", type=int, default=3, help="alternating runs; a row has the median (%(default)s)")
    given = parse(parser, "web-cpu.csv", threads=1)
    given.models.mkdir(parents=True, exist_ok=True)
    prepare(given.models, given.text)
    prepare_opus(given.models / "opus-mt", given.text, given.optimum)
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
