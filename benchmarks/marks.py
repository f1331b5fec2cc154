"""Measure whether elements around words hold the translations of these words, and the time of putting them there.

Each of the first lines of `valid` gets an element around one word, and another time around three words. A word is sure
if the lexicon of `benchmarks.alignment` has its translation, and if both occur once. "held" is the share of elements
that hold the translations of all their sure words, of those with a sure word. "foreign" is the share of words in
elements that are sure translations of words outside. A guess is an element whose place got a warning.

    python -m benchmarks.marks toolkit/src/relattn_mt/models/everyday-en-de TEXT

TEXT is a folder with train.LANGUAGE.gz, and valid.LANGUAGE with or without .gz. The column `ratio` is processor time,
that of the lines with an element around every second word, divided by that of the plain lines.
"""

import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from relattn_mt.bundle import read_bundle
from relattn_mt.hub import resolve
from relattn_mt.text.lexicon import lexicon, words_of
from relattn_mt.text.marked import Mark, Marked
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.translator import Translator

from benchmarks.alignment import lines_of
from benchmarks.measure import Row, alternate, command, parse, record

KEY = ("model", "source", "target", "words")
WORD = re.compile(r"\w+")


def with_element(line: str, count: int, draw: random.Random) -> Marked:
    """Return a line with an element around some of its words."""
    words = list(WORD.finditer(line))
    first = draw.randrange(len(words) - count + 1)
    return Marked(line, (Mark(words[first].start(), "open", 0), Mark(words[first + count - 1].end(), "close", 0)))


def with_elements(line: str) -> Marked:
    """Return a line with an element around every second word."""
    words = list(WORD.finditer(line))[::2]
    marks = [(Mark(word.start(), "open", i), Mark(word.end(), "close", i)) for i, word in enumerate(words)]
    return Marked(line, tuple(mark for pair in marks for mark in pair))


def inner(text: Marked) -> list[str]:
    """Return the words in an element."""
    begin, end = (mark.at for mark in text.marks)
    return words_of(text.text[begin:end])


def counts_of(
    sources: Sequence[Marked], translations: Sequence[Marked], translation_of: dict[str, str]
) -> Counter[str]:
    """Count what the elements of translations hold."""
    counts: Counter[str] = Counter()
    for source, target in zip(sources, translations, strict=True):
        source_words, target_words = words_of(source.text), words_of(target.text)
        known = {word: translation_of.get(word, "") for word in source_words if source_words.count(word) == 1}
        sure = {word: other for word, other in known.items() if target_words.count(other) == 1}
        own = [other for word, other in sure.items() if word in inner(source)]
        held = inner(target)
        counts["empty"] += not WORD.search(" ".join(held))
        counts["sure"] += bool(own)
        counts["held"] += bool(own) and set(own) <= set(held)
        counts["inner"] += len(held)
        counts["foreign"] += len((set(sure.values()) - set(own)).intersection(held))
    return counts


def translated(translator: Translator, texts: Sequence[Marked]) -> list[Marked]:
    return [ranked[0].marked for ranked in translator.translate_sentences([Sentence(text) for text in texts])]


def processor_time(work: Callable[[], object]) -> float:
    """Run a function and return its processor time in seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def row_of(translator: Translator, lines: Sequence[str], count: int, translation_of: dict[str, str]) -> Row:
    """Return what elements around a number of words hold."""
    draw = random.Random(1)
    texts = [with_element(line, count, draw) for line in lines]
    guesses: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: guesses.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("relattn_mt.translate.translation")
    log.addHandler(handler)
    counts = counts_of(texts, translated(translator, texts), translation_of)
    log.removeHandler(handler)
    shares = {
        "held": f"{counts['held'] / max(1, counts['sure']):.1%}",
        "foreign": f"{counts['foreign'] / max(1, counts['inner']):.1%}",
    }
    return {"elements": len(texts), "empty": counts["empty"], "guesses": len(guesses), "sure": counts["sure"], **shares}


def main() -> None:
    parser = command("marks", __doc__)
    parser.add_argument("model", help="bundle")
    parser.add_argument("text", type=Path, help="folder of texts")
    parser.add_argument("--lines", type=int, default=400, help="lines of valid (%(default)s)")
    given = parse(parser, "marks-cpu.csv", threads=1)
    translator = read_bundle(resolve(given.model)).translator()
    for source, target in translator.pairs:
        direction = translator.with_languages(source, target)
        pairs = zip(lines_of(given.text, "train", target), lines_of(given.text, "train", source), strict=True)
        translation_of = lexicon(pairs)
        long = (line for line in lines_of(given.text, "valid", source) if len(WORD.findall(line)) >= 3)
        lines = list(islice(long, given.lines))
        plain, marked = [Marked(line) for line in lines], [with_elements(line) for line in lines]
        works: dict[str, Callable[[], Any]] = {
            "plain": partial(translated, direction, plain),
            "marked": partial(translated, direction, marked),
        }
        times = alternate(works, 5, clock=processor_time)
        ratio = round(times["marked"].median / times["plain"].median, 3)
        name = Path(given.model).name
        rows = [{"words": count, **row_of(direction, lines, count, translation_of)} for count in (1, 3)]
        record(given, [{"model": name, "source": source, "target": target, **row, "ratio": ratio} for row in rows], KEY)


if __name__ == "__main__":
    main()
