"""`python -m research demo`, `reproduce`, `corpus`, `everyday`, `deepen`, `quality`, `positions` and `attention`"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Literal

from relattn_mt import config
from relattn_mt.bundle import read_bundle
from relattn_mt.commands.options import DeviceOptions, SearchOptions, require_new_output
from relattn_mt.commands.parser import parse
from relattn_mt.hub import resolve
from relattn_mt.support.console import log_to_stderr
from relattn_mt.support.errors import InputError, Interrupted, missing_package, one_line, require, unknown
from relattn_mt.support.files import output
from relattn_mt.translate.options import TranslateOptions
from relattn_mt.translate.translator import Translator

from research import baselines


def demo(
    *,
    compare: list[config.Positions] = [],  # noqa: B006
    steps: int = 2000,
    seed: int = 1,
    src_lang: str = "en",
    tgt_lang: str = "de",
    out: str = "runs/demo",
) -> None:
    """Train a small model on the built-in corpus, with nothing to download, and show what it learned.

    Args:
        compare: Further position schemes to train for comparison with relative positions.
        steps: Number of optimizer steps per scheme.
        seed: Random seed of weights, batches and dropout.
        src_lang: Source locale.
        tgt_lang: Target locale.
        out: Directory of the corpus, the runs, the table and the picture.
    """
    _require_packages("matplotlib", "num2words")
    from research.demo import demo as run

    schemes: list[config.Positions] = list(dict.fromkeys(["relative", *compare]))
    run(Path(out), schemes, steps=steps, seed=seed, src_lang=src_lang, tgt_lang=tgt_lang)


def reproduce(
    table: Literal["positions", "clip", "tables"],
    *,
    scale: Literal["demo", "multi30k", "multi30k-8000", "medium", "wmt14"] = "demo",
    seeds: list[int] = [1, 2, 3],  # noqa: B006
    rows: list[str] = [],  # noqa: B006
    steps: int | None = None,
    data: str = "",
    out: str = "results",
    runs: str = "runs/reproduce",
) -> None:
    """Train the models of a table of the paper and write a page. Models that have been trained are not trained again.

    The page is SCALE.md. It has all tables whose models have been trained.

    Args:
        table: Models to compare: position schemes (positions), clipping distances (clip), or aK and aV (tables).
        scale: Corpus, model size and number of steps. A model takes minutes (demo, multi30k), an hour (multi30k-8000),
            hours (medium), or weeks on one GPU (wmt14).
        seeds: Random seeds. Each model is trained once per seed.
        rows: Names of the models to train. By default, all of the table.
        steps: Number of training steps, instead of the scale's.
        data: Directory of the training and validation text. By default, data/demo, where the built-in corpus is
            written, data/multi30k, data/medium_en_de or data/wmt14-en-de.
        out: Directory of the pages, with one file per model and seed under rows/SCALE.
        runs: Directory of the training runs.
    """
    _require_packages("matplotlib", "num2words")
    from research.reproduce import reproduce as run

    print(run(table, scale, seeds=seeds, models=rows, steps=steps, data=data, out=Path(out), runs=Path(runs)))


def corpus(
    out: str,
    *,
    src_lang: str = "en",
    tgt_lang: str = "de",
    train: int = 20_000,
    valid: int = 500,
    test: int = 500,
    long: int = 500,
    seed: int = 0,
) -> None:
    """Write the built-in corpus, two files per split: train.en, train.de and so on. Files that exist are kept.

    Args:
        out: Directory of the files.
        src_lang: Source locale.
        tgt_lang: Target locale.
        train: Number of training lines. A larger number starts with the same lines.
        valid: Number of validation lines.
        test: Number of test lines, as long as those of training.
        long: Number of lines that are more than twice as long.
        seed: Random seed. Other seeds give other lines with the same values.
    """
    _require_packages("num2words")
    from research.corpus import write_files

    lines = {"train": train, "valid": valid, "test": test, "long": long}
    write_files(Path(out), src_lang=src_lang, tgt_lang=tgt_lang, lines=lines, seed=seed)


def everyday(directory: str, *, teacher: str = "") -> None:
    """Write the training text of everyday-en-de beside train.en and train.de.

    Args:
        directory: Directory of the text.
        teacher: Model that translates the text. Of its six best translations of a line, the one that is nearest to the
            translation in the text becomes a pair too. By default, there are no such pairs.
    """
    _require_packages("num2words")
    from research.everyday import write_interpolated, write_text

    counts = write_text(Path(directory))
    if teacher:
        counts |= write_interpolated(Path(directory), teacher)
    for name, count in counts.items():
        print(f"{name}: {count:,} pairs")


def deepen(bundle: str, *, out: str, encoder_layers: int) -> None:
    """Write a model with more encoder layers, which translates as before until it is trained further.

    Args:
        bundle: Directory of a bundle, or name of a model.
        out: Directory of the new bundle.
        encoder_layers: Number of its encoder layers.
    """
    from research.deepen import deepen as run

    run(read_bundle(resolve(bundle)), Path(out), encoder_layers)


def quality(bundle: str, *, src: str, tgt: str, show: int = 0) -> None:
    """Print what a model of English and German does with names, numbers, set phrases and text in the target language.

    Args:
        bundle: Directory of a bundle, or name of a model.
        src: English text that was not trained on.
        tgt: Its German translations.
        show: Number of failures to print per row.
    """
    _require_packages("num2words")
    from research.quality import measure

    measure(bundle, Path(src), Path(tgt), show=show)


def positions(bundle: str, *, src: str, ref: str, width: int, device: DeviceOptions) -> None:
    """Print by target position how well each token of a reference is predicted from the tokens before it.

    Nothing is translated (teacher forcing). The table has the percentage of tokens predicted correctly and the mean
    negative log-likelihood in nats per token. Its last row is the end of sentence.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        src: File of source lines, plain or compressed.
        ref: File of reference translations, one per source line.
        width: Number of target positions per row of the table.
    """
    from relattn_mt.tokens.text_files import ParallelFiles

    from research.positions import by_position, table

    print(table(by_position(_load(bundle, device), list(ParallelFiles(src, ref)), width=width)))


def _load(bundle: str, device: DeviceOptions) -> Translator:
    """Load a bundle in float32, on PyTorch."""
    require(device.precision in (None, "fp32"), f"this command requires precision fp32, got {device.precision}")
    return read_bundle(resolve(bundle)).torch_translator(device.device)


def attention(
    bundle: str,
    sentences: list[str] = [],  # noqa: B006
    *,
    out: str = "",
    serve: bool = False,
    port: int = 5001,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Show the attention of sentences, with the content term and the relative term of each score apart.

    Each sentence is translated, and the translation is printed.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        sentences: Sentences to translate.
        out: Output file: an .html with an interactive view, or a .json with the numbers of all layers, of one sentence.
        serve: Show the view on a page of this machine, where sentences can be typed, until Ctrl-C.
        port: Port of that page.
    """
    path = Path(out)
    require(serve != bool(out), "give either --out or --serve")
    require(serve or path.suffix in (".html", ".json"), f"out must end in .html or .json, got {out}")
    require(serve or bool(sentences), "--out requires a sentence")
    require(serve or path.suffix == ".html" or len(sentences) == 1, "a .json has one sentence")
    require_new_output(out, [], bundle, "--out")

    from research import attention_page as page
    from research.attention import as_json, inspect

    translator = _load(bundle, device)
    options = TranslateOptions(search=search.override(translator))
    if path.suffix == ".json":
        with output(path) as write:  # an unwritable file is refused first
            inspection = inspect(translator, sentences[0], options)
            write(as_json(inspection).encode())
        print(inspection.translation)
        return
    with nullcontext() if serve else output(path) as write:
        shown = [page.attention_of(translator, line, options) for line in sentences]
        html = page.as_html(translator, shown, asks=serve)
        if write:
            write(html.encode())
    for each in shown:
        print(each["translation"])
    if serve:
        server = page.serve(html, lambda line: page.attention_of(translator, line, options), port)
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()


COMMANDS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (demo, reproduce, corpus, everyday, deepen, quality, positions, attention)
}


def _require_packages(*names: str) -> None:
    """Raise an InputError unless packages that no extra installs can be imported, before anything is trained."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            raise InputError(f"{name} cannot be imported: pip install {' '.join(names)}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, or with those of the process. Return the exit code."""
    baselines.register()
    name, *words = (sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        if name in ("-h", "--help"):
            print(f"usage: python -m research {{{','.join(COMMANDS)}}} [options]")
            return 0
        if name not in COMMANDS:
            raise unknown("command", name, COMMANDS)
        arguments, quiet = parse(name, COMMANDS[name], words, "python -m research")
        with log_to_stderr(quiet=quiet):
            COMMANDS[name](**arguments)
        return 0
    except Interrupted as stop:
        message, code = str(stop), 128 + stop.number
    except InputError as error:
        message, code = f"error: {one_line(error)}", 2
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        message, code = f"error: {missing}", 2
    print(f"relattn-mt: {one_line(message)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
