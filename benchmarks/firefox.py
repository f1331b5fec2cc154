"""Firefox's models in its own engine of 2022 (Bergamot), in fxtranslate and in ours: speed, memory, and equal texts.

ENVIRONMENTS is a folder of virtual environments, each with one package and its dependencies: bergamot (0.4.5, Python
3.10), fxtranslate (0.5.0), and relattn-mt, without extras. Each run is a new process (`engine_process.py`).

    python -m benchmarks.firefox speed MODELS LINES --environments DIR --text EN DE
    python -m benchmarks.firefox equal STUDENTS LINES --environments DIR

speed: Random models of the sizes of Firefox's, in int8, with 32,000 pieces learned from TEXT, are written to MODELS
unless they are there. Their translations never end and have words of one piece, so that an engine's own limit decides
their length, and the pieces of a text are its words. The shortlist has 50 random pieces per piece. Runs alternate.

equal: STUDENTS has directories as `relattn-mt export marian` writes them. Lines are translated one by one, since the
longest line of a batch decides how long Bergamot's translations may be. Texts of each program are compared with
Bergamot's. The difference of two texts is that of their mean log-probabilities per token, by our float32.
"""

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from relattn_mt import load
from relattn_mt.bundle import quantize_bundle, read_bundle
from relattn_mt.formats.import_model import import_model
from relattn_mt.tokens.text_files import read_lines
from relattn_mt.tokens.tokenizer import SPACE_MARK, pieces_of, processor

from benchmarks.engines import installed, run
from benchmarks.measure import Row, command, parse, record
from tests.support.firefox_models import random_model, train_vocabulary, write_bin, write_shortlist

SIZES = {"tiny11": (256, (6, 2)), "base-memory": (384, (6, 4))}  # dim, and layers of encoder and decoder
PIECES, BEST, BANNED = 32_000, 50, -1e4
NEAR = 0.01  # nats per token
ENGINES = {  # name -> its model
    "bergamot": "marian",
    "fxtranslate": "marian",
    "relattn-mt": "bundle",
    "relattn-mt 7 bits": "bundle-7",
}
SEVERAL = [name for name in ENGINES if name != "fxtranslate"]  # engines that translate lines together


def prepare(models: Path, text: Sequence[Path]) -> None:
    """Write the models that are missing: of each size, with and without a shortlist, in the format of each engine."""
    models.mkdir(parents=True, exist_ok=True)
    vocabulary = models / "vocab.spm"
    if not vocabulary.exists():
        train_vocabulary(vocabulary, [line for file in text for line in read_lines(file)], PIECES)
    pieces = pieces_of(processor(vocabulary.read_bytes()))
    draw = np.random.default_rng(1)
    lists = [np.unique(draw.integers(0, len(pieces), BEST)) for _ in pieces]
    begins_word = np.array([piece.startswith(SPACE_MARK) and piece != SPACE_MARK for piece in pieces])
    for size, suffix in product(SIZES, ("", "-shortlist")):
        folder = models / f"{size}{suffix}"
        if (folder / "bundle-7").exists():
            continue
        marian = folder / "marian"
        marian.mkdir(parents=True, exist_ok=True)
        dim, layers = SIZES[size]
        tensors, options = random_model(len(pieces), dim=dim, inner=1536, layers=layers, transformer_heads=8)
        tensors["decoder_ff_logit_out_b"][0, ~begins_word] = BANNED
        write_bin(marian / "model.bin", tensors, options, int8=True)
        (marian / "vocab.spm").write_bytes(vocabulary.read_bytes())
        if suffix:
            write_shortlist(marian / "lex.s2t.bin", len(pieces), first=BEST, best=BEST, lists=lists)
        imported(marian, folder / "bundle")
        quantize_bundle(read_bundle(folder / "bundle"), folder / "bundle-7", overwrite=True)


def imported(marian: Path, out: Path) -> Path:
    """Write the bundle of a model in Marian's format."""
    import_model(
        marian, out, tokenizer=None, tgt_tokenizer=None, src_lang="en", tgt_lang="de", sample=1, overwrite=True
    )
    return out


def python_of(environments: Path, name: str) -> Path:
    """Return the interpreter of an engine's environment."""
    return environments / name.split()[0] / "bin/python"


def speed(given: argparse.Namespace) -> None:
    prepare(given.models, given.text)
    sizes = {name: installed(python_of(given.environments, name).parents[1]) for name in ENGINES}
    cases = [
        (name, model, 1)
        for model, name in product(sorted(path.parent.name for path in given.models.glob("*/bundle-7")), ENGINES)
    ]
    cases += [(name, model, 2) for name, model, _ in cases if name in SEVERAL]
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for _, case in product(range(given.repeats), cases):
        name, model, threads = case
        path = given.models / model / ENGINES[name]
        alone = [given.alone] if threads == 1 else []
        engine = name.split()[0]
        result = run(python_of(given.environments, name), engine, path, given.lines, 1, threads, *alone)
        found.setdefault(case, []).append(result)
        print(name, model, threads, {key: value for key, value in result.items() if key != "translations"}, flush=True)
    for (name, model, threads), runs in found.items():
        row: Row = {"engine": name, "model": model.removesuffix("-shortlist")}
        row |= {"shortlist": model.endswith("-shortlist"), "installed_mb": sizes[name]}
        row["seconds_to_first"] = median(runs, "first", "", ".2f")
        row["processor_to_first"] = median(runs, "processor", "", ".3f")
        row["processor_imports"] = median(runs, "imports", "", ".3f")
        for kind in ("alone", "together"):
            row[f"pieces_per_second_{kind}"] = median(runs, kind, "written", ".0f")
            row[f"peak_mib_{kind}"] = median(runs, kind, "peak", ".0f")
        given.conditions["threads"] = str(threads)
        record(given, [row], ("engine", "model", "shortlist"))


def median(runs: Sequence[dict[str, Any]], name: str, part: str, form: str) -> str:
    """Return the median of a figure, or of a part of it; empty if it was not measured."""
    figures = [each[name][part] if part else each[name] for each in runs if name in each]
    return f"{statistics.median(figures):{form}}" if figures else ""


def equal(given: argparse.Namespace) -> None:
    lines = given.lines.read_text(encoding="utf-8").splitlines()
    for student in sorted(path.parent for path in given.models.glob("*/model.bin")):
        with tempfile.TemporaryDirectory() as folder:
            bundle = imported(student, Path(folder) / "bundle")
            texts = {}
            for name in ("bergamot", "fxtranslate", "relattn-mt"):
                path = bundle if name == "relattn-mt" else student
                python = python_of(given.environments, name)
                try:
                    result = run(python, name, path, given.lines, 1, given.threads, len(lines))
                except subprocess.CalledProcessError as error:
                    print(f"{name} does not run {student.name}: {error.stderr.splitlines()[-1]}")
                    continue
                texts[name] = result["translations"]
            scorer = load(bundle, precision="fp32")
            reference = texts.pop("bergamot")
            for name, own in texts.items():
                others = [i for i, text in enumerate(own) if text != reference[i]]
                means = []
                for side in (own, reference):
                    scores = scorer.score([(lines[i], side[i]) for i in others])
                    means.append([sum(score for _, score in row) / len(row) for row in scores])
                gaps = np.abs(np.array(means[0]) - np.array(means[1]))
                row: Row = {"student": student.name, "engine": name, "lines": len(lines)}
                row |= {"equal": len(lines) - len(others), "within_0.01_nats": int((gaps <= NEAR).sum())}
                row |= {"largest_nats": f"{gaps.max(initial=0):.4f}"}
                record(given, [row], ("student", "engine"))
                for i in others[: given.shown]:
                    print(lines[i], "\n ", reference[i], "\n ", own[i])


def main() -> None:
    parser = command("firefox", __doc__)
    parser.add_argument("kind", choices=("speed", "equal"), help="measurement: speed and memory, or equal translations")
    parser.add_argument("models", type=Path, help="folder of models")
    parser.add_argument("lines", type=Path, help="source lines")
    parser.add_argument("--environments", type=Path, required=True, help="folder of virtual environments")
    parser.add_argument("--text", type=Path, nargs="+", default=[], help="files to learn the vocabulary from")
    parser.add_argument("--alone", type=int, default=60, help="lines that are translated one by one (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="alternating runs; a row has the median (%(default)s)")
    parser.add_argument("--shown", type=int, default=0, help="other texts that are printed per program (%(default)s)")
    given = parse(parser, "firefox-cpu.csv", threads=1)
    if given.kind == "speed":
        speed(given)
    else:
        given.out = given.out.with_name("firefox-equal-cpu.csv")
        equal(given)


if __name__ == "__main__":
    main()
