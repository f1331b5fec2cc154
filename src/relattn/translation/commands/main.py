"""The command line: one function a command, each importing what it needs only when it runs.

Every mistake of the user's ends in one line on standard error and exit code 2, wherever it was found.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentError, ArgumentParser

from relattn.translation.config import (
    CleaningConfig,
    Format,
    Part,
    Positions,
    Precision,
    Quantization,
    Recipe,
    SearchConfig,
)
from relattn.translation.console import shown
from relattn.translation.errors import InputError, Interrupted, one_line, require, require_installed
from relattn.translation.processor import cores
from relattn.translation.settings import add_settings, recipe_flags

if TYPE_CHECKING:
    from relattn.translation.translate.pipeline import Translator

SERVING = (  # what the extra "serve" installs, as it is imported
    *("babel", "bs4", "docx", "fastapi", "prometheus_client", "py3langid", "pydantic", "python_multipart", "sentencex"),
    *("srt", "starlette", "uvicorn"),
)


def main(argv: list[str] | None = None) -> int:
    """Run a command with the given arguments, or those of the process; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    # Lightning imports matplotlib, which keeps a cache: not in the user's home.
    os.environ.setdefault("MPLCONFIGDIR", str(Path(tempfile.gettempdir()) / f"relattn-matplotlib-{os.getuid()}"))
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed")
        with shown():
            code = _command(argv)
        sys.stdout.flush()
        return code
    except Interrupted as stop:
        return _told(f"relattn: {stop}", 128 + stop.number)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except (InputError, ArgumentError, OSError) as error:
        return _told(f"relattn: error: {one_line(error)}", 2)
    except (MemoryError, RuntimeError) as error:
        if not (
            isinstance(error, MemoryError) or re.search("out of memory|not enough memory|allocate memory", str(error))
        ):
            raise
        return _told(f"relattn: error: not enough memory: {one_line(error, 200)}", 2)
    finally:
        _settle_output()


def _command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
    elif argv[0] not in COMMANDS:
        raise InputError(f"there is no command '{one_line(argv[0], 40)}'; the commands are {', '.join(COMMANDS)}")
    else:
        try:
            COMMANDS[argv[0]](argv[1:])
        except SystemExit as stop:  # after --help
            return int(stop.code or 0)
    return 0


def _told(line: str, code: int) -> int:
    """The exit code, after a line on standard error, or as much of it as can be written."""
    with suppress(OSError):
        print(line, file=sys.stderr)
    return code


def _settle_output() -> None:
    """Point standard output elsewhere when it cannot be written, so that Python's own last flush finds no fault."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def train(argv: list[str]) -> None:
    """Train a model by a recipe, a file or a known one: relattn train RECIPE [--resume] [--group.setting VALUE …]"""
    parser = _parser("train", train)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the run's directory")
    settings = _recipe(parser, argv)
    resume = settings.pop("resume")
    wanted = Recipe(**settings)

    from relattn.translation.training.processes import first_process
    from relattn.translation.training.run import train as run

    path = run(wanted, resume=resume)
    if first_process():
        print(path)


def recipe(argv: list[str]) -> None:
    """Write one of the recipes that are known by name, to be changed: relattn recipe wmt14-en-de-base > mine.yaml"""
    from relattn.translation.config import dump
    from relattn.translation.presets import PRESETS

    parser = _parser("recipe", recipe)
    parser.add_argument("name", choices=PRESETS, help=", ".join(PRESETS))
    print(dump(PRESETS[parser.parse_args(argv).name]), end="")


def plan(argv: list[str]) -> None:
    """What a training will take: memory, disk, tokens, time: relattn plan RECIPE [--devices N] [--measure STEPS]"""
    parser = _parser("plan", plan)
    parser.add_argument("--devices", type=int | None, default=None, help="deal the recipe's steps out to so many")
    parser.add_argument("--measure", type=int, default=0, help="take so many steps here, on one device, to tell time")
    settings = _recipe(parser, argv)
    devices, steps = settings.pop("devices"), settings.pop("measure")
    require(steps >= 0, f"measure must be at least 0, got {steps}")
    wanted = Recipe(**settings)

    from relattn.translation.training import budget

    if devices is not None:
        wanted = budget.on_devices(wanted, devices)
    print(budget.plan(wanted, measured=budget.seconds_a_step(wanted, steps) if steps else None))


def evaluate(argv: list[str]) -> None:
    """Score a model on text files or the embedded corpus: relattn evaluate BUNDLE --src FILE --ref FILE"""
    parser = _parser("evaluate", evaluate)
    _add_models(parser)
    parser.add_argument("--src", type=str, default="", help="source lines, plain or .gz")
    parser.add_argument("--ref", type=str, default="", help="reference translations, one line per sentence")
    parser.add_argument(
        "--embedded", type=str, default="", help="embedded split, instead of files: valid, test or long"
    )
    parser.add_argument("--lines", type=int, default=500, help="lines of the embedded corpus")
    parser.add_argument("--output", type=str, default="", help="file for the translations, or the table by position")
    parser.add_argument(
        "--calibrate", action="store_true", help="and calibrate the bundle's confidences by these lines"
    )
    parser.add_argument(
        "--by_position",
        type=int | None,
        default=None,
        metavar="WIDTH",
        help="translate nothing; for every WIDTH target positions, the share of the reference's pieces predicted right "
        "and nats a piece, each given those before it (teacher forcing); the ends of sentence come last; "
        "--output keeps the table as CSV, and a picture beside it as .png",
    )
    parser.add_argument(
        "--trained",
        type=int | None,
        default=None,
        help="pieces of the longest target trained on, to be marked in the picture",
    )
    _add_search(parser)
    arguments = parser.parse_args(argv)

    from relattn.translation import bundle
    from relattn.translation.data.corpora import read_parallel
    from relattn.translation.evaluation import item_accuracy, score
    from relattn.translation.files import output
    from relattn.translation.translate.confidence import calibrate
    from relattn.translation.translate.options import TranslateOptions
    from relattn.translation.translate.torch_translator import TorchTranslator

    if bool(arguments.embedded) == bool(arguments.src) or bool(arguments.src) != bool(arguments.ref):
        raise InputError("evaluate needs --src and --ref, or --embedded")
    if arguments.trained is not None and (arguments.by_position is None or not arguments.output):
        raise InputError("--trained marks the picture that --by_position draws beside --output")
    if arguments.trained is not None and arguments.trained < 1:
        raise InputError(f"trained must be at least 1, got {arguments.trained}")
    if arguments.by_position is not None and Path(arguments.output).suffix == ".png":
        raise InputError("--output names the table; its picture is put beside it, as .png")
    if not 1 <= arguments.lines <= 10**9:
        raise InputError(f"lines must be at least 1 and at most 1,000,000,000, got {arguments.lines}")
    translator = _load(arguments.bundles, arguments)
    options = TranslateOptions(search=_search(translator, arguments))
    if arguments.calibrate and (len(arguments.bundles) > 1 or not isinstance(translator, TorchTranslator)):
        raise InputError("--calibrate is for one bundle")
    if arguments.calibrate and (arguments.by_position is not None or not Path(arguments.bundles[0]).is_dir()):
        raise InputError("--calibrate writes into the directory of a bundle whose translations are scored")
    if arguments.embedded:
        from relattn.translation.data.embedded import embedded

        pairs = embedded(
            arguments.embedded, src_lang=translator.src_lang, tgt_lang=translator.tgt_lang, lines=arguments.lines
        )
    else:
        pairs = list(read_parallel(arguments.src, arguments.ref))
    with ExitStack() as places:  # refused before anything is measured
        path = Path(arguments.output)
        write = places.enter_context(output(path)) if arguments.output else None
        if arguments.by_position is not None:
            from relattn.translation.analysis import positions as teacher_forcing

            if not isinstance(translator, TorchTranslator):
                raise InputError(
                    f"{arguments.bundles[0]}: an export; what it predicts by position only its bundle tells"
                )
            draw = places.enter_context(output(path.with_suffix(".png"))) if write else None
            bins = teacher_forcing.by_position(translator, pairs, width=arguments.by_position)
            print(teacher_forcing.table(bins))
            if write and draw:
                write(teacher_forcing.as_csv(bins).encode())
                draw(teacher_forcing.as_png({path.stem: bins}, trained=arguments.trained))
            return
        src, references = [a for a, _ in pairs], [b for _, b in pairs]
        found = [best for (best,) in translator.n_best(src, options, progress=sys.stderr.isatty())]
        translations = [best.text for best in found]
        print(score(translations, references))
        if arguments.calibrate:
            calibration = calibrate(found, references)
            require(calibration is not None, "--calibrate requires two lines whose translations differ in confidence")
            assert calibration is not None
            bundle.calibrate(arguments.bundles[0], calibration)
        if write:
            write("".join(f"{line}\n" for line in translations).encode())
    if arguments.embedded:
        accuracy = item_accuracy(translations, references)
        print(f"items {100 * accuracy.items:.1f} %  lines {100 * accuracy.lines:.1f} %")


def translate(argv: list[str]) -> None:
    """Translate lines from standard input to standard output: relattn translate BUNDLE < in.txt > out.txt"""
    parser = _parser("translate", translate)
    _add_models(parser)
    parser.add_argument("--n_best", type=int, default=0, help="write so many a line: number ||| translation ||| score")
    parser.add_argument("--format", type=Format, default="text", help="tsv, jsonl: with line number and score")
    parser.add_argument(
        "--align", action="store_true", help="and which source word each word is of, as Pharaoh: 0-0 1-2"
    )
    parser.add_argument(
        "--keep_tags", action="store_true", help="keep tags, placeholders, addresses and the like whole"
    )
    parser.add_argument("--prefix", type=str, default="", help="file of what each translation is to begin with")
    parser.add_argument(
        "--terms", type=str, default="", help="file of terms and what they are to be called, tab between"
    )
    parser.add_argument("--sample", action="store_true", help="draw translations, instead of searching for the best")
    parser.add_argument("--top_k", type=int | None, default=None, help="with --sample: from so many of the likeliest")
    parser.add_argument("--temperature", type=float | None, default=None, help="with --sample: below 1, surer ones")
    parser.add_argument("--seed", type=int | None, default=None, help="with --sample: of what is drawn")
    _add_search(parser)
    arguments = parser.parse_args(argv)

    from relattn.translation.data.corpora import arriving_lines, read_lines
    from relattn.translation.search.types import SamplingOptions
    from relattn.translation.translate.glossary import Glossary
    from relattn.translation.translate.options import TranslateOptions
    from relattn.translation.translate.output_formats import header, written

    if sys.stdin is None:
        raise InputError("standard input is closed")
    drawing = {field: arguments[field] for field in ("top_k", "temperature", "seed") if arguments[field] is not None}
    if drawing and not arguments.sample:
        raise InputError(f"--{next(iter(drawing))} is for --sample, which is not given")
    for option in ("beam_size", "early_stopping"):
        if arguments.sample and arguments[option] is not None:
            raise InputError(f"--{option} is for a search, and --sample draws instead")
    if arguments.sample and arguments.terms:
        raise InputError("--terms is for a search, and --sample draws instead")
    glossary = Glossary.read(arguments.terms) if arguments.terms else None
    translator = _load(arguments.bundles, arguments)
    options = TranslateOptions(
        n_best=arguments.n_best or 1,
        search=_search(translator, arguments),
        sampling=SamplingOptions(**drawing) if arguments.sample else None,
        glossary=glossary,
        keep_tags=arguments.keep_tags,
        align=arguments.align,
    )
    lines = arriving_lines(sys.stdin.fileno())
    prefixes = read_lines(arguments.prefix) if arguments.prefix else None
    found = translator.stream(lines, options, prefixes=prefixes, progress=sys.stderr.isatty())
    how = {"n_best": bool(arguments.n_best), "align": arguments.align}
    for line in header(arguments.format, align=arguments.align):
        print(line)
    for number, of_line in enumerate(found, start=1):
        print("\n".join(written(arguments.format, number, of_line, **how)), flush=True)


def score(argv: list[str]) -> None:
    """Write the log-probability of given translations, in nats: relattn score BUNDLE --src FILE --tgt FILE"""
    parser = _parser("score", score)
    _add_models(parser)
    parser.add_argument("--src", type=str, required=True, help="source lines, plain or .gz")
    parser.add_argument("--tgt", type=str, required=True, help="their translations, a line each")
    parser.add_argument("--tokens", action="store_true", help="and, after a tab, each piece with its own")
    _add_device(parser)
    arguments = parser.parse_args(argv)

    from relattn.translation.data.corpora import read_parallel

    translator = _load(arguments.bundles, arguments)
    _, pieces = translator.tokenizer.vocabularies
    for found in translator.score(read_parallel(arguments.src, arguments.tgt)):
        each = " ".join(f"{pieces[i]} {log_prob:.4f}" for i, log_prob in found)
        print(f"{sum(log_prob for _, log_prob in found):.4f}" + (f"\t{each}" if arguments.tokens else ""))


def serve(argv: list[str]) -> None:
    """Serve models over HTTP, to LibreTranslate's clients and as a page: relattn serve MODEL …"""
    from relattn.translation.serve.limits import Limits

    parser = _parser("serve", serve)
    parser.add_argument("models", type=str, nargs="+", metavar="MODEL", help="bundles, exports, or names on the hub")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="address to listen at; 0.0.0.0: from anywhere")
    parser.add_argument("--port", type=int, default=5000, help="0: any that is free")
    parser.add_argument("--pivot", type=str, default="", help="language to go through where no model goes straight")
    parser.add_argument("--keys", type=str, default="", help="file of the keys that are let in, one a line")
    parser.add_argument("--cors", type=str, nargs="*", default=[], help="origins whose pages may use it")
    parser.add_class_arguments(Limits, "limits")
    _add_search(parser)
    arguments = parser.parse_args(argv)

    require(0 <= arguments.port <= 65535, f"port must be at least 0 and at most 65,535, got {arguments.port}")
    limits = Limits(**arguments.limits.as_dict())
    require_installed(*SERVING, extra="serve")

    from relattn.translation.serve.run import serve as run

    translators: dict[tuple[str, str], Translator] = {}
    for path in arguments.models:
        translator = _load([path], arguments)
        pair = translator.src_lang, translator.tgt_lang
        if pair in translators:
            raise InputError(f"{path}: a second model from {pair[0]} into {pair[1]}")
        translators[pair] = translator
    run(
        translators,
        host=arguments.host,
        port=arguments.port,
        pivot=arguments.pivot,
        keys=Path(arguments["keys"]) if arguments["keys"] else None,
        cors=arguments.cors,
        limits=limits,
    )


def inspect(argv: list[str]) -> None:
    """Show what attention reads in a sentence, content and distance apart: relattn inspect BUNDLE "a sentence" """
    parser = _parser("inspect", inspect)
    parser.add_argument("bundle", type=str, help="directory of the trained model, or its name on the hub")
    parser.add_argument("line", type=str, help="the sentence")
    parser.add_argument("--out", type=str, required=True, help="picture.png, of one layer; or data.json, of all")
    parser.add_argument("--part", type=Part, default="encoder", help="of the picture: whose self-attention, or cross")
    parser.add_argument("--layer", type=int, default=1, help="of the picture")
    _add_search(parser)
    arguments = parser.parse_args(argv)

    path = Path(arguments.out)
    if path.suffix not in (".png", ".json"):
        raise InputError(f"{path}: what is written is a .png or a .json")

    from relattn.translation.analysis.attention import as_json, as_png
    from relattn.translation.analysis.attention import inspect as run
    from relattn.translation.files import output
    from relattn.translation.translate.torch_translator import TorchTranslator

    translator = _load([arguments.bundle], arguments)
    if not isinstance(translator, TorchTranslator):
        raise InputError(f"{arguments.bundle}: an export; only its bundle shows its attention")
    with output(path) as write:
        found = run(translator, arguments.line)
        write(as_json(found).encode() if path.suffix == ".json" else as_png(found, arguments.part, arguments.layer))
    print(found.translation)


def average(argv: list[str]) -> None:
    """Average a run's last checkpoints into a bundle: relattn average RUN --last 5 --out BUNDLE"""
    parser = _parser("average", average)
    parser.add_argument("run", type=str, help="directory of the run")
    parser.add_argument("--last", type=int, default=5, help="checkpoints to average")
    parser.add_argument("--out", type=str, required=True, help="directory of the new bundle")
    arguments = parser.parse_args(argv)

    require(bool(arguments.out), "out must name a directory")

    from relattn.translation.training.run import average_run

    average_run(arguments.run, arguments.last, arguments.out)


def push(argv: list[str]) -> None:
    """Put a bundle on the Hugging Face hub: relattn push BUNDLE ORG/NAME"""
    parser = _parser("push", push)
    parser.add_argument("bundle", type=str, help="directory of the trained model")
    parser.add_argument("name", type=str, help="its name on the hub: a user or an organisation, /, the model")
    parser.add_argument("--private", action="store_true", help="the repository is to be private")
    parser.add_argument("--license", type=str, default="", help="the model's licence, by the hub's name for it: mit, …")
    arguments = parser.parse_args(argv)

    from relattn.translation import hub

    print(hub.push(arguments.bundle, arguments.name, private=arguments.private, license=arguments.license))


def export(argv: list[str]) -> None:
    """Write a bundle for another program, and check that it says the same: relattn export ctranslate2 BUNDLE OUT"""
    parser = _parser("export", export)
    parser.add_argument("program", choices=("ctranslate2", "argos", "onnx"), help="what is to run it; argos: a package")
    parser.add_argument("bundle", type=str, help="directory of the trained model, or its name on the hub")
    parser.add_argument("out", type=str, help="directory of the export, or file of the package")
    parser.add_argument(
        "--quantization", type=Quantization, default="float32", help="type of the weights; onnx: float32 alone"
    )
    parser.add_argument("--sample", type=str, default="", help="source lines to check it with, plain or .gz")
    parser.add_argument("--lines", type=int, default=100, help="of the sample, or drawn from the model's vocabulary")
    arguments = parser.parse_args(argv)

    require(bool(arguments.out), "out must name a directory")
    lines = _sample(arguments)
    if arguments.program == "onnx" and arguments.quantization != "float32":
        raise InputError(f"an export for onnx has weights of float32, not {arguments.quantization}")

    from relattn.translation import bundle, hub
    from relattn.translation.formats import argos, onnx
    from relattn.translation.formats.ctranslate2 import write as ctranslate2

    parts, out = bundle.read_bundle(hub.resolve(arguments.bundle)), Path(arguments.out)
    check = arguments.lines if lines is None else lines
    if arguments.program == "onnx":
        print(onnx.export(parts, out, sample=check))
    else:
        write = ctranslate2.export if arguments.program == "ctranslate2" else argos.export
        print(write(parts, out, quantization=arguments.quantization, sample=check))


def import_(argv: list[str]) -> None:
    """Make a bundle of a model from OpenNMT-py, eole or CTranslate2: relattn import PATH OUT --tokenizer sp.model"""
    parser = _parser("import", import_)
    parser.add_argument("path", type=str, help="OpenNMT-py's checkpoint, eole's directory, or one for CTranslate2")
    parser.add_argument("out", type=str, help="directory of the bundle")
    parser.add_argument("--tokenizer", type=str, default="", help="SentencePiece model, of the source or of both sides")
    parser.add_argument("--tgt_tokenizer", type=str, default="", help="that of the target, where it has its own")
    parser.add_argument("--src_lang", type=str, default="", help="source language, where the model does not say")
    parser.add_argument("--tgt_lang", type=str, default="", help="target language")
    parser.add_argument("--sample", type=str, default="", help="source lines to check it with, plain or .gz")
    parser.add_argument("--lines", type=int, default=20, help="of the sample, or drawn from the model's vocabulary")
    parser.add_argument("--overwrite", action="store_true", help="replace the bundle in the output directory")
    arguments = parser.parse_args(argv)

    require(bool(arguments.out), "out must name a directory")
    lines = _sample(arguments)

    from relattn.translation.formats.import_model import import_model

    told = import_model(
        Path(arguments.path),
        Path(arguments.out),
        tokenizer=Path(arguments.tokenizer) if arguments.tokenizer else None,
        tgt_tokenizer=Path(arguments.tgt_tokenizer) if arguments.tgt_tokenizer else None,
        src_lang=arguments.src_lang,
        tgt_lang=arguments.tgt_lang,
        sample=arguments.lines if lines is None else lines,
        overwrite=arguments.overwrite,
    )
    print(told)


def demo(argv: list[str]) -> None:
    """Train on the embedded corpus, with nothing to download, and show what was learned: relattn demo"""
    parser = _parser("demo", demo)
    parser.add_argument("--compare", type=Positions, nargs="*", default=[], help="other schemes, trained alike")
    parser.add_argument("--steps", type=int, default=2000, help="optimiser steps of each scheme")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights, batches and dropout")
    parser.add_argument("--src_lang", type=str, default="en", help="source locale")
    parser.add_argument("--tgt_lang", type=str, default="de", help="target locale")
    parser.add_argument("--out", type=str, default="runs/demo", help="directory for everything the demo makes")
    arguments = parser.parse_args(argv)

    require(bool(arguments.out), "out must name a directory")

    from relattn.translation.demo import demo as run

    schemes: list[Positions] = ["relative", *(name for name in arguments.compare if name != "relative")]
    run(
        Path(arguments.out),
        schemes,
        steps=arguments.steps,
        seed=arguments.seed,
        src_lang=arguments.src_lang,
        tgt_lang=arguments.tgt_lang,
    )


def reproduce(argv: list[str]) -> None:
    """Train a table of the paper again and write its page: relattn reproduce positions --scale demo"""
    from relattn.translation.experiments.reproduce import reproduce as run
    from relattn.translation.experiments.scales import SCALES
    from relattn.translation.experiments.tables import TABLES

    parser = _parser("reproduce", reproduce)
    parser.add_argument("table", choices=TABLES, help="positions, clip, tables (as in the paper), or length")
    parser.add_argument("--scale", choices=SCALES, default="demo", help="corpus and budget: minutes, hours or weeks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="each model is trained once from each")
    parser.add_argument("--rows", type=str, nargs="*", default=[], help="train these models alone; all by default")
    parser.add_argument("--steps", type=int | None, default=None, help="of each training, in place of the scale's")
    parser.add_argument("--data", type=str, default="", help="directory of the scale's files")
    parser.add_argument("--out", type=str, default="results", help="directory for the pages and a file for each row")
    parser.add_argument("--runs", type=str, default="runs/reproduce", help="directory for the trainings")
    arguments = parser.parse_args(argv)

    require(bool(arguments.out) and bool(arguments.runs), "out and runs must name directories")
    page = run(
        arguments.table,
        arguments.scale,
        seeds=arguments.seeds,
        chosen=arguments.rows,
        steps=arguments.steps,
        data=Path(arguments.data) if arguments.data else None,
        out=Path(arguments.out),
        runs=Path(arguments.runs),
    )
    print(page)


def prepare(argv: list[str]) -> None:
    """Make training text of a corpus, fetched if it is a known one, and clean it: relattn prepare wmt14-en-de"""
    from relattn.translation.preparing.known import KNOWN

    parser = _parser("prepare", prepare)
    parser.add_argument("name", type=str, nargs="?", default="", help=f"{', '.join(KNOWN)}; none: your own files")
    parser.add_argument("--src", type=str, default="", help="your own source lines, plain or .gz")
    parser.add_argument("--tgt", type=str, default="", help="their translations, a line each")
    parser.add_argument("--src_lang", type=str, default="", help="their languages")
    parser.add_argument("--tgt_lang", type=str, default="")
    parser.add_argument(
        "--exclude", type=str, nargs="*", default=[], help="files of lines that training must have nothing of"
    )
    parser.add_argument("--out", type=str, default="", help="directory of what is made; data/NAME unless given")
    parser.add_argument("--processes", type=int | None, default=None, help="that judge pairs; all cores unless given")
    parser.add_class_arguments(CleaningConfig)
    arguments = parser.parse_args(argv)
    config = CleaningConfig(**{field.name: arguments[field.name] for field in fields(CleaningConfig)})
    processes = cores() if arguments.processes is None else arguments.processes
    require(1 <= processes <= 1024, f"processes must be at least 1 and at most 1,024, got {processes}")

    from relattn.translation.preparing.run import CARD
    from relattn.translation.preparing.run import prepare as run

    corpus = _corpus(arguments)
    out = Path(arguments.out or Path("data", arguments.name))
    prepared = run(corpus, out, config, processes=processes, show=sys.stderr.isatty())
    if prepared.before:
        print(f"{out} was prepared before, from the same text and by the same rules", end="\n\n")
    print(prepared.account, end=f"\n\n{out / CARD}\n")


def _corpus(arguments: Any) -> Any:
    """The corpus that is to be prepared: a known one or files."""
    from relattn.translation.preparing.known import KNOWN
    from relattn.translation.preparing.sources import KnownCorpus, OwnFiles

    options = ("src", "tgt", "src_lang", "tgt_lang")
    given = [option for option in (*options, "exclude") if arguments[option]]
    if arguments.name:
        known = f"'{one_line(arguments.name, 40)}' is no known corpus; those are {', '.join(KNOWN)}"
        require(arguments.name in KNOWN, known)
        flags = ", ".join(f"--{option}" for option in given)
        require(not given, f"{flags} are for files of your own; {arguments.name} has its own")
        return KnownCorpus(arguments.name)
    missing = [f"--{option}" for option in (*options, "out") if not arguments[option]]
    needs = "prepare needs the name of a corpus, or --src, --tgt, --src_lang, --tgt_lang and --out"
    require(not missing, f"{needs}; {', '.join(missing)} not given")
    for option in ("src_lang", "tgt_lang"):  # they are in names of files
        code = re.fullmatch(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*", arguments[option])
        require(code is not None, f"{option} must be a code such as en or pt-BR, got {one_line(arguments[option], 40)}")
    require(arguments.src_lang != arguments.tgt_lang, f"a pair has two languages, got {arguments.src_lang} twice")
    return OwnFiles(
        arguments.src, arguments.tgt, (arguments.src_lang, arguments.tgt_lang), exclude=tuple(arguments.exclude)
    )


COMMANDS = {
    command.__name__.rstrip("_"): command
    for command in (
        demo,
        prepare,
        train,
        plan,
        recipe,
        evaluate,
        translate,
        score,
        serve,
        inspect,
        average,
        export,
        import_,
        push,
        reproduce,
    )
}


def _usage() -> str:
    lines = ["usage: relattn COMMAND …, and relattn COMMAND --help for its options", ""]
    return "\n".join(lines + [f"  {name:10} {command.__doc__}" for name, command in COMMANDS.items()])


def _parser(name: str, command: Any) -> ArgumentParser:
    return ArgumentParser(prog=f"relattn {name}", description=command.__doc__, exit_on_error=False)


def _recipe(parser: ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """What a command that begins with a recipe was given: its settings, overridden by those after it, and options."""
    add_settings(parser, Recipe)
    if argv and not argv[0].startswith("-"):
        argv = recipe_flags(argv[0], overriding=argv[1:]) + argv[1:]
    given: dict[str, Any] = parser.instantiate(parser.parse_args(argv)).as_dict()
    return given


def _sample(arguments: Any) -> list[str] | None:
    """The lines that a model is to be checked with, as many as asked for; None where they are to be drawn."""
    from itertools import islice

    from relattn.translation.data.corpora import read_lines

    if not 1 <= arguments.lines <= 10**6:
        raise InputError(f"lines must be at least 1 and at most 1,000,000, got {arguments.lines}")
    return list(islice(read_lines(arguments.sample), arguments.lines)) if arguments.sample else None


def _add_models(parser: ArgumentParser) -> None:
    """The models of commands that translate."""
    parser.add_argument(
        "bundles",
        type=str,
        nargs="+",
        metavar="BUNDLE",
        help="directory of a bundle or an export, or a bundle's name on the hub; of several bundles, their ensemble",
    )


def _add_search(parser: ArgumentParser) -> None:
    """Options of commands that translate; what is not given is as the bundle says."""
    parser.add_argument("--beam_size", type=int | None, default=None, help="hypotheses a sentence; 1 is greedy")
    parser.add_argument("--alpha", type=float | None, default=None, help="exponent of the length penalty")
    parser.add_argument(
        "--early_stopping",
        type=bool | None,
        default=None,
        help="true: end a line's search as soon as beam_size translations are whole",
    )
    _add_device(parser)


def _add_device(parser: ArgumentParser) -> None:
    """Where to compute, and how."""
    parser.add_argument("--device", type=str, default="cpu", help="cpu, cuda, cuda:1, …")
    parser.add_argument("--threads", type=int | None, default=None, help="CPU threads; each translates its own lines")
    parser.add_argument(
        "--precision", type=Precision | None, default=None, help="fp32 or bf16: faster where there is hardware for it"
    )


def _load(names: list[str], arguments: Any) -> Translator:
    """Load the translator of a bundle, an ensemble or an export."""
    from relattn.translation.translate.load import load

    return load(*names, device=arguments.device, precision=arguments.precision, threads=arguments.threads)


def _search(translator: Translator, arguments: Any) -> SearchConfig:
    """Return the search of a translator, with the options that were given."""
    from relattn.translation.formats.ctranslate2.translator import CTranslate2Translator

    if isinstance(translator, CTranslate2Translator) and arguments.early_stopping is False:
        raise InputError("an export always stops early; use the bundle")
    given = {name: arguments[name] for name in ("beam_size", "alpha", "early_stopping") if arguments[name] is not None}
    return replace(translator.search, **given)


if __name__ == "__main__":
    sys.exit(main())
