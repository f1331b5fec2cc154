"""A bundle and its exports for CTranslate2 on the same lines: scores, texts, BLEU. Beam 4."""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.measure import conditions, keep
from relattn.translation import bundle, load
from relattn.translation.config import SearchConfig
from relattn.translation.data.builtin import builtin
from relattn.translation.data.text_files import read_parallel
from relattn.translation.evaluation import score
from relattn.translation.formats.ctranslate2.directory import Quantization
from relattn.translation.formats.ctranslate2.write import export

RESULTS = Path(__file__).parent / "results" / "exported-cpu.csv"
KINDS: list[Quantization] = ["float32", "int8"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exported", description=__doc__)
    parser.add_argument("bundle", help="the model")
    parser.add_argument("--name", required=True, help="of the rows: what the model is, and what the lines")
    parser.add_argument("--src", default="data/multi30k/test2016.en")
    parser.add_argument("--ref", default="data/multi30k/test2016.de")
    parser.add_argument("--builtin", default="", help="split of the built-in corpus, instead of files")
    parser.add_argument("--lines", type=int, default=1000, help="at most")
    parser.add_argument("--penalty", choices=("none", "own"), default="none", help="own: as each searches by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parts = bundle.read_bundle(arguments.bundle)
    search = replace(parts.search, beam_size=SearchConfig().beam_size)
    parts = replace(parts, search=replace(search, length_penalty="none") if arguments.penalty == "none" else search)
    if arguments.builtin:
        split, lines = arguments.builtin, arguments.lines
        pairs = builtin(split, src_lang=parts.src_lang, tgt_lang=parts.tgt_lang, lines=lines)
    else:
        pairs = list(read_parallel(arguments.src, arguments.ref))[: arguments.lines]
    src, references = [a for a, _ in pairs], [b for _, b in pairs]
    ours = score(parts.translator().translate(src), references)
    rows = []
    for quantization in KINDS:
        with tempfile.TemporaryDirectory() as directory:
            report = export(parts, Path(directory) / "model", quantization=quantization, sample=src)
            theirs = load(Path(directory) / "model", threads=arguments.threads)
            bleu = score(theirs.translate(src), references).bleu
        parity = report.parities[quantization]
        rows.append(
            {"name": arguments.name, "weights": quantization, "penalty": arguments.penalty, "lines": parity.lines}
            | {"tokens": parity.tokens}
            | {"worst_nats": f"{parity.worst:.2e}", "mean_nats": f"{parity.mean:.2e}", "same_text": parity.same}
            | {"others": "; ".join(f"{count} {reason}" for reason, count in parity.others.items())}
            | {"bleu_bundle": f"{ours.bleu:.2f}", "bleu_export": f"{bleu:.2f}", "signature": ours.bleu_signature}
            | conditions()
        )
        print(f"{quantization}: {parity}; BLEU {ours.bleu:.2f} of the bundle, {bleu:.2f} of the export", flush=True)
    keep(arguments.out, rows, ("name", "weights", "penalty"))


if __name__ == "__main__":
    main()
