"""Options that several commands share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from relattn_mt.config import SearchConfig, SyntheticCleaningConfig
from relattn_mt.support.errors import require
from relattn_mt.support.files import real_path
from relattn_mt.translate import Precision

if TYPE_CHECKING:
    from relattn_mt.translate.translator import Translator


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Search options; by default, those of the bundle

    Args:
        beam_size: Number of hypotheses kept per sentence. 1 is greedy search.
        alpha: Exponent of the length penalty. Larger values prefer longer translations; 0 disables it.
        early_stopping: If true, end the search of a sentence as soon as beam_size hypotheses have finished. If
            heuristic, also wait until the best unfinished one has no better score, as transformers does by default.
        no_repeat_ngram: Size of the n-grams that a translation must not repeat; 0 allows all.
        repetition_penalty: Penalty of tokens that the translation already has; 1 disables it.
    """

    beam_size: int | None = None
    alpha: float | None = None
    early_stopping: bool | Literal["heuristic"] | None = None
    no_repeat_ngram: int | None = None
    repetition_penalty: float | None = None

    def override(self, translator: "Translator") -> SearchConfig:
        """Return the search of a translator with the options that are set."""
        return replace(translator.search, **{name: value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Device options

    Args:
        device: Device to run on: cpu, cuda, cuda:1.
        threads: Number of CPU threads. Each thread translates its own batches. By default, all cores.
        precision: Precision of weights and arithmetic: fp32, bf16 (on a GPU) or int8 (faster on most CPUs). By default
            fp32, and int8 for a quantized bundle.
    """

    device: str = "cpu"
    threads: int | None = None
    precision: Precision | None = None

    def load(self, bundle: str, *, src_lang: str = "", tgt_lang: str = "") -> "Translator":
        """Load a bundle."""
        from relattn_mt import load

        return load(bundle, **vars(self), src_lang=src_lang, tgt_lang=tgt_lang)


@dataclass(frozen=True, kw_only=True)
class SynthesisOptions:
    """Options of `relattn-mt distill` and `relattn-mt backtranslate`

    Args:
        out: Output directory of the corpus.
        exclude: Files of held-out lines, such as test sets. Pairs that overlap with them are dropped.
        n_best: Number of translations per line. At most the beam size.
    """

    out: str
    exclude: tuple[str, ...] = ()
    n_best: int = 1
    cleaning: SyntheticCleaningConfig
    search: SearchOptions
    device: DeviceOptions

    def write(self, teacher: str, data: Sequence[str], *, tag: str | None = None) -> None:
        """Translate files with a teacher, write the pairs as a corpus, and print its statistics."""
        from relattn_mt.corpus.pipeline import RECORD
        from relattn_mt.synthesis import SyntheticText, synthesize
        from relattn_mt.translate.options import TranslateOptions

        device = self.device
        translator = device.load(teacher)
        search = self.search.override(translator)
        require(
            self.n_best <= search.beam_size,
            f"n_best must be at most the beam size {search.beam_size}, got {self.n_best}",
        )
        text = SyntheticText(
            translator=translator,
            teacher=teacher,
            files=tuple(data),
            options=TranslateOptions(n_best=self.n_best, search=search),
            cleaning=self.cleaning,
            precision=f"{device.precision or translator.engine.precision} on {device.device}",
            exclude=self.exclude,
            tag=tag,
        )
        out = Path(self.out)
        print(synthesize(text, out), end=f"\n\n{out / RECORD}\n")


def require_new_output(out: str, inputs: Sequence[str], bundle: str, option: str) -> None:
    """Raise an InputError if writing `out`, unless it is empty, would replace a file or write into a bundle.

    `option` is the option that gives it.
    """
    if not out:
        return
    path = real_path(out)
    for name in filter(None, inputs):
        require(real_path(name) != path, f"{out}: the output must not replace an input or another output")
    inside = path.is_relative_to(real_path(bundle))
    require(not inside, f"{out}: the output must not be inside the bundle {bundle}")
    require(not path.is_file(), f"{out}: exists; choose another name with {option}")


def check_sample(path: str, count: int) -> list[str] | int:
    """Return the first `count` lines of a file, or `count` itself if no file is given.

    This is the `sample` that a conversion is checked with.
    """
    from itertools import islice

    from relattn_mt.tokens.text_files import read_lines

    require(1 <= count <= 10**6, f"check_count must be at least 1 and at most 1,000,000, got {count}")
    return list(islice(read_lines(path), count)) if path else count
