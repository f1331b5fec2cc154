"""Training text of everyday-en-de that Tatoeba lacks: names, amounts and dates in sentences, a traveller's first words.

The words and patterns are recipes/everyday-lists.tsv, recipes/everyday-patterns.tsv and, with dates, times and negative
numbers in digits, recipes/everyday-figures.tsv; whole pairs are recipes/everyday-phrases.tsv,
recipes/everyday-written*.tsv and, for single words, recipes/everyday-words.tsv. Sentences are repeated in brackets and
quotation marks, and as people type them on a phone, which Tatoeba hardly has. No line that is written is one of
recipes/everyday-held-out.tsv.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from random import Random

from relattn_mt.loading import load
from relattn_mt.support.files import write_atomically
from relattn_mt.translate.options import TranslateOptions

from research.corpus import FIRST_DAY, Item, draw_items, split_of

Pair = tuple[str, str]  # English, German

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
SEED = 98
BEAM = 6
LEAST_NEARNESS = 0.35
PAIRS = {
    "names": 60_000,
    "labels": 12_000,
    "numbers": 40_000,
    "sentences": 40_000,
    "copies": 15_000,
    "figures": 12_000,
    "enclosed": 30_000,
    "typed": 60_000,
}
_ENGLISH, _GERMAN = range(2)
_LANGUAGES = "en", "de"
# before and after an English text and a German one
_ENCLOSING = [
    ("(", ")", "(", ")"),
    ("[", "]", "[", "]"),
    ("“", "”", "„", "“"),
    ('"', '"', "„", "“"),
    ('"', '"', '"', '"'),
    ("“", "”", "»", "«"),
    ("'", "'", "‚", "‘"),
    ("- ", "", "- ", ""),
    ("* ", "", "* ", ""),
    ("• ", "", "• ", ""),
    ("– ", "", "– ", ""),
    ("1. ", "", "1. ", ""),
    ("a) ", "", "a) ", ""),
]
_LONGEST_ENCLOSED = 12  # words
_COMMA_OR_APOSTROPHE = re.compile(r"(?<!\d),|,(?!\d)|['’]")  # not the mark of decimals
_WITHOUT_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"})
_LONGEST_ADDED = 4
_TITLES = {"November", "August", "April", "September", "OK", "TV"}
_WORD = re.compile(r"\w+(?:['’]s\b)?|\W")
_ONSETS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "pr",
    "qu",
    "r",
    "s",
    "sch",
    "sh",
    "sl",
    "st",
    "str",
    "t",
    "th",
    "tr",
    "v",
    "w",
    "x",
    "y",
    "z",
]
_VOWELS = ["a", "e", "i", "o", "u", "ä", "ö", "ü", "ai", "au", "ea", "ei", "ie", "oo", "ou", "y", "é"]
_CODAS = ["", "", "", "l", "n", "r", "t", "ck", "m", "nd", "rt", "x", "lm", "ng", "tz", "w", "p", "d", "k"]
_KEYS = "asdfghjkl", "qwertyuiop", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz"
_LARGEST_SPELLED = 120  # larger numbers in words are rare
_STAYS = (  # English and German, singular and plural
    ("night", "Nacht", "nights", "Nächte"),
    ("day", "Tag", "days", "Tage"),
    ("week", "Woche", "weeks", "Wochen"),
)


def write_text(directory: Path) -> dict[str, int]:
    """Write pairs of files beside train.en and train.de of a directory, and return the number of pairs of each.

    rest: the text without pairs that translate a set phrase otherwise than recipes/everyday-phrases.tsv.
    names: pairs of the text in which names are replaced by others. labels: names, products and unknown words alone.
    words: a dictionary. typed-en and typed-de: pairs whose source, English or German, is as people type it on a phone.
    sentences: patterns with their slots filled. numbers-en and numbers-de: items of the built-in corpus, alone and in
    sentences, whose source is English or German. phrases, written and written-2 etc.: pairs of our own. copied and
    copy: lines of the text, twice the same.
    """
    pairs = _tatoeba(directory)
    random = Random(SEED)
    maker = Maker(random)
    names = shared_names(pairs)
    random.shuffle(pairs)
    counts = {}

    def write(name: str, made: list[Pair]) -> None:
        counts[name] = _write_pairs(directory / name, made)

    replaced = (maker.replace_names(pair, names) for pair in pairs + pairs)
    write("names", list(islice((pair for pair in replaced if pair is not None), PAIRS["names"])))
    for language, lines in zip(_LANGUAGES, _lines_to_copy(pairs, random), strict=True):
        for name in ("copied", "copy"):
            write_atomically(directory / f"{name}.{language}", "".join(f"{line}\n" for line in lines).encode())
    write("labels", [maker.label() for _ in range(PAIRS["labels"])])
    write("sentences", [maker.sentence() for _ in range(PAIRS["sentences"])])
    numbers = list(islice(maker.numbers(), PAIRS["numbers"]))
    write("numbers-en", [pair for pair, is_english in numbers if is_english])
    write("numbers-de", [pair for pair, is_english in numbers if not is_english])
    phrases = written_pairs("phrases")
    write("phrases", phrases)
    text = {"rest": pairs, "words": written_pairs("words")}
    for path in sorted(RECIPES.glob("everyday-written*.tsv")):
        name = path.stem.removeprefix("everyday-")
        text[name] = written_pairs(name)
    for name, others in text.items():
        text[name] = without_other_translations(others, phrases)
        write(name, text[name])
    whole = list(dict.fromkeys(chain(phrases, *text.values())))
    for column, language in enumerate(_LANGUAGES):
        drawn = random.sample(whole, min(PAIRS["typed"], len(whole)))
        write(f"typed-{language}", [maker.typed(pair, column) for pair in drawn])
    short = [pair for pair in pairs if len(pair[_ENGLISH].split()) <= _LONGEST_ENCLOSED]
    write("enclosed", [maker.enclosed(short) for _ in range(PAIRS["enclosed"])])
    write("figures", [maker.figures() for _ in range(PAIRS["figures"])])
    return counts


def without_other_translations(pairs: list[Pair], phrases: list[Pair]) -> list[Pair]:
    """Return the pairs without those that have a side of a set phrase, and another one than the set phrases have."""
    known = set(phrases)
    sides = [{pair[column] for pair in phrases} for column in (_ENGLISH, _GERMAN)]
    return [pair for pair in pairs if pair in known or not (pair[_ENGLISH] in sides[0] or pair[_GERMAN] in sides[1])]


def written_pairs(name: str) -> list[Pair]:
    """Return the pairs of recipes/everyday-NAME.tsv."""
    pairs = []
    for line in (RECIPES / f"everyday-{name}.tsv").read_text(encoding="utf-8").splitlines():
        english, german = line.split("\t")
        pairs.append((english, german))
    return pairs


def write_interpolated(directory: Path, teacher: str) -> dict[str, int]:
    """Write the text with a teacher's translations as targets, and return the number of pairs per source language.

    Of the teacher's best translations of a line, the one that is nearest to a reference is taken (sequence-level
    interpolation, Kim and Rush 2016). Lines without a near one are left out.
    """
    sides = dict(zip(_LANGUAGES, zip(*_tatoeba(directory), strict=True), strict=True))
    counts = {}
    for source, target in (_LANGUAGES, _LANGUAGES[::-1]):
        translator = load(teacher, src_lang=source, tgt_lang=target)
        search = replace(translator.search, beam_size=BEAM)
        options = TranslateOptions(n_best=BEAM, search=search, copy=False)
        references: dict[str, list[str]] = {}
        for line, reference in zip(sides[source], sides[target], strict=True):
            references.setdefault(line, []).append(reference)
        lines = sorted(references, key=len)
        chosen = []
        for line, translations in zip(lines, translator.n_best(lines, options), strict=True):
            best = max(translations, key=lambda translation: nearness(translation.text, references[line]))
            if nearness(best.text, references[line]) >= LEAST_NEARNESS:
                chosen.append((line, best.text))
        for language, column in ((source, 0), (target, 1)):
            text = "".join(f"{pair[column]}\n" for pair in chosen)
            write_atomically(directory / f"inter-{source}.{language}", text.encode())
        counts[f"inter-{source}"] = len(chosen)
    return counts


def nearness(translation: str, references: list[str]) -> float:
    """Return the mean of the F scores of words and of pairs of words, from 0 to 1, with the nearest reference."""
    here = _words_and_pairs(translation)
    scores = []
    for reference in references:
        there = _words_and_pairs(reference)
        scores.append(sum(_f_score(a, b) for a, b in zip(here, there, strict=True)) / len(here))
    return max(scores)


def _words_and_pairs(text: str) -> tuple[Counter[str], Counter[str]]:
    words = re.findall(r"\w+|[^\w\s]", text)
    return Counter(words), Counter(f"{first} {second}" for first, second in pairwise(words))


def _f_score(first: Counter[str], second: Counter[str]) -> float:
    total = first.total() + second.total()
    return 2 * (first & second).total() / total if total else 1.0


def shared_names(pairs: list[Pair]) -> set[str]:
    """Return the words that are names: in English always with a capital letter, also inside of sentences, and equal
    in German."""
    inside = Counter[str]()
    small = Counter[str]()
    same = Counter[str]()
    for english, german in pairs:
        words = re.findall(r"\w+", english)
        small.update(word for word in words if word.islower())
        inside.update(word for word in words[1:] if word.istitle())
        same.update(set(words) & set(re.findall(r"\w+", german)))
    capital = {word for word, count in inside.items() if count >= 2 and not small[word.lower()]}
    return {word for word in capital - _TITLES if len(word) > 2 and same[word] >= 2}


class Maker:
    """Makes pairs at random."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lists: dict[str, list[Pair]] = {}
        for line in (RECIPES / "everyday-lists.tsv").read_text(encoding="utf-8").splitlines():
            name, english, german = line.split("\t")
            self.lists.setdefault(name, []).append((english, german))
        self.patterns = (RECIPES / "everyday-patterns.tsv").read_text(encoding="utf-8").splitlines()
        self.patterns_of_figures = (RECIPES / "everyday-figures.tsv").read_text(encoding="utf-8").splitlines()

    def known(self, name: str) -> str:
        """Return an entry of a list that is the same in both languages."""
        return self.random.choice(self.lists[name])[_ENGLISH]

    def made_up(self) -> str:
        """Return a name that does not exist."""
        count = self.random.choice((1, 2, 2, 2, 3))
        syllables = [self.random.choice(_ONSETS) + self.random.choice(_VOWELS) for _ in range(count)]
        ending = self.random.choice(_CODAS if count > 1 else _CODAS[3:])
        return ("".join(syllables) + ending).capitalize()

    def keys(self) -> str:
        """Return letters without a meaning."""
        row = self.random.choice(_KEYS)
        length = self.random.randint(3, 8)
        if self.random.random() < 0.5:
            start = self.random.randrange(len(row))
            return (row[start:] + row)[:length]
        return "".join(self.random.choice(row) for _ in range(length))

    def product(self) -> str:
        """Return the name of a product, or an abbreviation."""
        letters = "".join(self.random.choice("ABCDEFGHKLMNPRSTVWXZ") for _ in range(self.random.randint(2, 4)))
        number = str(self.random.randint(2, 9999))
        name = self.made_up()
        forms = f"{letters}-{number}", f"{letters}{number}", letters, f"{name} {number}", f"{name}{letters}", f"i{name}"
        return self.random.choice(forms)

    def person(self) -> str:
        return self.known("first name") if self.random.random() < 0.5 else self.made_up()

    def surname(self) -> str:
        return self.known("last name") if self.random.random() < 0.5 else self.made_up()

    def full_name(self) -> str:
        return f"{self.person()} {self.surname()}"

    def city(self) -> str:
        return self.known("city") if self.random.random() < 0.6 else self.made_up()

    def company(self) -> str:
        if self.random.random() < 0.3:
            return self.known("company")
        return self.random.choice((self.made_up, self.product))()

    def label(self) -> Pair:
        """Return a name or an unknown word, which stays as it is."""
        makers: tuple[Callable[[], str], ...] = (
            self.person,
            self.surname,
            self.full_name,
            self.full_name,
            self.city,
            self.company,
            self.product,
            self.keys,
            self.made_up,
        )
        text = self.random.choice(makers)()
        if self.random.random() < 0.1:
            text = text.lower()
        text += self.random.choice(("", "", "", "", ".", "?", "!"))
        return text, text

    def replace_names(self, pair: Pair, names: set[str]) -> Pair | None:
        """Return a pair with other names, or None if it has none, or if it is not sure which become which."""
        english, german = (_WORD.findall(side) for side in pair)
        found = [_base(word) for word in english if _base(word) in names]
        if not found:
            return None
        genitives = {name + "s": name for name in found}
        bases = [genitives.get(word, _base(word)) for word in german]
        if Counter(found) != Counter(word for word in bases if word in names):
            return None
        new = self._new_names(english, names)
        if len(set(new.values())) < len(new):
            return None
        if any(name[-1] in "sxzß" for name in new.values()):  # the German genitive of such a name is another
            if any(word != _base(word) for word in english if _base(word) in new):
                return None
            if any(word in genitives and word not in names for word in german):
                return None
        source = [new[_base(word)] + word[len(_base(word)) :] if _base(word) in new else word for word in english]
        target = []
        for word in german:
            if word in new:
                target.append(new[word])
            elif word in genitives:
                target.append(new[genitives[word]] + "s")
            else:
                target.append(word)
        return "".join(source), "".join(target)

    def _new_names(self, english: list[str], names: set[str]) -> dict[str, str]:
        """Return another name for each of a sentence: of a city after "in", of a family after "Mr."."""
        new = dict[str, str]()
        for position, word in enumerate(english):
            name = _base(word)
            if name not in names or name in new:
                continue
            before = "".join(english[max(0, position - 2) : position]).lower()
            if re.fullmatch(r"(in|from|to|near|at|of) ", before):
                new[name] = self.city()
            elif re.search(r"mrs?\.? $|\. $", before):
                new[name] = self.surname()
            else:
                new[name] = self.full_name() if self.random.random() < 0.25 else self.person()
        return new

    def numbers(self) -> Iterator[tuple[Pair, bool]]:
        """Yield items of the built-in corpus, three of four in a sentence, and whether the source is English."""
        for item, is_english in self.items("train"):
            yield self.carried(item, is_english, share=0.75), is_english

    def items(self, split: str, seed: int = 0) -> Iterator[tuple[Item, bool]]:
        """Yield items of the built-in corpus, and whether they are from English. Rare ones in words are few."""
        while True:
            seed += 1
            for is_english in (True, False):
                languages = _LANGUAGES if is_english else _LANGUAGES[::-1]
                for line in draw_items(split, src_lang=languages[0], tgt_lang=languages[1], lines=500, seed=seed):
                    item = self.random.choice(line)
                    if not self._is_rare(item):
                        yield item, is_english

    def _is_rare(self, item: Item) -> bool:
        if item.kind == "year":
            return True
        return item.kind == "number" and item.value > _LARGEST_SPELLED and self.random.random() < 0.8

    def carried(self, item: Item, is_english: bool, share: float = 1.0) -> Pair:
        """Return the English and German side of an item, in a sentence if its kind has some, with a probability."""
        english, german = (item.src, item.tgt) if is_english else (item.tgt, item.src)
        sentences = self.lists.get(f"with {item.kind}", [])
        if not sentences or self.random.random() >= share:
            return english, german
        sides = self.random.choice(sentences)
        return sides[_ENGLISH].format(x=english), sides[_GERMAN].format(x=german)

    def sentence(self) -> Pair:
        """Return a pattern with its slots filled."""
        source, target = self.random.choice(self.patterns).split("\t")
        chosen = {name: self.random.choice(entries) for name, entries in self.lists.items()}
        english = {name: entry[_ENGLISH] for name, entry in chosen.items()}
        german = {name: entry[_GERMAN] for name, entry in chosen.items()}
        self._add_stay(english, german, plural="{pl}s" in source)
        self._add_times(english, german)
        german["Screen"] = german["screen"].split(" ", 1)[1]
        nominative = re.sub(r"^den ", "der ", german["screen"])
        german["Screen_n"] = nominative[0].upper() + nominative[1:]
        english["verb_l"] = english["verb"].lower()
        copied = self._copied()
        source = source.replace("{pl}s", "{pl}")
        target = target.replace("{pl}s", "{pl}")
        return source.format(**english | copied), target.format(**german | copied)

    def figures(self) -> Pair:
        """Return a pattern with its slots filled by dates, times and negative numbers in digits."""
        source, target = self.random.choice(self.patterns_of_figures).split("\t")
        slots = {
            "date": self._date(),
            "date2": self._date(),
            "day": self._day(),
            "day2": self._day(),
            "morning": self._time("AM"),
            "evening": self._time("PM"),
            "range": self._opening_hours(),
            "minus": self._negative(),
        }
        copied = {"n": str(self.random.randint(1, 15)), "city": self.city()}
        english = {name: sides[_ENGLISH] for name, sides in slots.items()}
        german = {name: sides[_GERMAN] for name, sides in slots.items()}
        return source.format(**english | copied), target.format(**german | copied)

    def enclosed(self, pairs: list[Pair]) -> Pair:
        """Return a pair in brackets or quotation marks, after the mark of a list item, or joined to another one."""
        chance = self.random.random()
        if chance < 0.3:
            return self._joined(pairs)
        english, german = self._added(pairs) if chance < 0.5 else self.random.choice(pairs)
        opening, closing, other_opening, other_closing = self.random.choice(_ENCLOSING)
        name = f"{self.person()}: " if chance > 0.9 else ""
        return f"{name}{opening}{english}{closing}", f"{name}{other_opening}{german}{other_closing}"

    def typed(self, pair: Pair, column: int) -> Pair:
        """Return a pair whose source is typed in a hurry: without marks, in small or all capital letters, "ue" for "ü".

        Capital letters and marks at the end are those of both sides.
        """
        sides = list(pair)
        if self.random.random() < 0.3:
            sides[column] = _COMMA_OR_APOSTROPHE.sub("", sides[column])
        if self.random.random() < 0.25:
            sides[column] = sides[column].translate(_WITHOUT_UMLAUTS)
        chance = self.random.random()
        if chance < 0.6:
            sides = [side.rstrip(".!?") for side in sides]
        if chance < 0.2:
            sides = [side.upper() for side in sides]
        elif chance < 0.9:
            sides[column] = sides[column].lower()
        english, german = sides
        return english, german

    def _joined(self, pairs: list[Pair]) -> Pair:
        """Return two pairs with a dash, a slash or brackets."""
        english, german = self._added(pairs)
        other_english, other_german = self._added(pairs)
        sentence, satz = self.random.choice(pairs)
        dash = self.random.choice((" – ", " — ", "—"))
        forms = [
            (f"{english}{dash}{other_english}", f"{german} – {other_german}"),
            (f"{english}/{other_english}", f"{german}/{other_german}"),
            (f"{sentence} ({english})", f"{satz} ({german})"),
        ]
        return self.random.choice(forms)

    def _added(self, pairs: list[Pair]) -> Pair:
        """Return a short pair without the mark at its end."""
        while True:
            english, german = self.random.choice(pairs)
            if len(english.split()) <= _LONGEST_ADDED:
                return english.rstrip(".!?"), german.rstrip(".!?")

    def _any_day(self) -> datetime.date:
        """Return a day of the training split of the built-in corpus."""
        while True:
            day = datetime.date(1950, 1, 1) + datetime.timedelta(days=self.random.randrange(90 * 365))
            if split_of("date", (day - FIRST_DAY).days) == "train":
                return day

    def _date(self) -> Pair:
        """Return a day with its year: with zeros as CLDR's medium length, or without."""
        day = self._any_day()
        if self.random.random() < 0.7:
            return f"{day:%b} {day.day}, {day.year}", f"{day:%d.%m.%Y}"
        return f"{day.day} {day:%b} {day.year}", f"{day.day}.{day.month}.{day.year}"

    def _day(self) -> Pair:
        day = self._any_day()
        if self.random.random() < 0.7:
            return f"{day:%b} {day.day}", f"{day:%d.%m.}"
        return f"{day.day} {day:%b}", f"{day.day}.{day.month}."

    def _time(self, half: str) -> Pair:
        hour = self.random.randint(1, 11)
        minute = self.random.choice((0, 15, 30, 45, self.random.randrange(60)))
        return f"{hour}:{minute:02} {half}", f"{hour + 12 * (half == 'PM')}:{minute:02}"

    def _opening_hours(self) -> Pair:
        opens = self.random.randint(6, 12)
        closes = self.random.randint(13, 22)
        dash = self.random.choice("-–")
        if self.random.random() < 0.4:
            return f"{opens} AM{dash}{closes - 12} PM", f"{opens}{dash}{closes}"
        minutes = self.random.choice(("00", "15", "30", "45"))
        both = f"{opens}:{minutes}{dash}{closes}:{self.random.choice(('00', minutes))}"
        return both, both

    def _negative(self) -> Pair:
        number = self.random.choice((self.random.randint(1, 30), self.random.randint(1, 999)))
        if self.random.random() < 0.3:
            tenth = self.random.randrange(10)
            return f"-{number}.{tenth}", f"-{number},{tenth}"
        return f"-{number}", f"-{number}"

    def _add_stay(self, english: dict[str, str], german: dict[str, str], *, plural: bool) -> None:
        night, nacht, nights, nächte = self.random.choice(_STAYS)
        english["pl"] = nights if plural else night
        german["pl"] = nächte if plural else nacht
        german["pl_e"] = "en" if nacht == "Tag" else "e"  # of "ein" before it
        german["pl_dat"] = nächte if nächte.endswith("n") else nächte + "n"

    def _add_times(self, english: dict[str, str], german: dict[str, str]) -> None:
        hours = self.lists["hour"]
        hour = self.random.randrange(len(hours) - 1)
        english["h"] = hours[hour][_ENGLISH]
        german["half"] = f"halb {hours[hour + 1][_GERMAN]}"  # half past two is "halb drei"
        english["hour2"], german["hour2"] = self.random.choice(hours)

    def _copied(self) -> dict[str, str]:
        """Return slots that are the same in both languages."""
        domain = f"{self.made_up()}.{self.random.choice(('com', 'de', 'org', 'net'))}".lower()
        return {
            "person": self.person(),
            "person2": self.person(),
            "full": self.full_name(),
            "surname": self.surname(),
            "city": self.city(),
            "city2": self.city(),
            "company": self.company(),
            "product": self.product(),
            "word": self.random.choice((self.keys, self.product))(),
            "year": str(self.random.randint(1950, 2026)),
            "n": str(self.random.randint(13, 99)),
            "n2": str(self.random.randint(100, 450)),
            "phone": "0" + "".join(self.random.choice("0123456789") for _ in range(9)),
            "mail": f"{self.made_up().lower()}@{domain}",
            "url": f"https://www.{domain}/{self.keys()}",
        }


def _base(word: str) -> str:
    return re.sub(r"['’]s$", "", word)


def _lines_to_copy(pairs: list[Pair], random: Random) -> Iterator[list[str]]:
    """Yield lines of three words and more, English ones and German ones."""
    for column in (_ENGLISH, _GERMAN):
        drawn = random.sample(pairs, PAIRS["copies"])
        yield [pair[column] for pair in drawn if len(pair[column].split()) > 2]


def _tatoeba(directory: Path) -> list[Pair]:
    """Return the pairs of train.en and train.de without those that have a held-out phrase."""
    sides = [(directory / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in _LANGUAGES]
    return _without_held_out(zip(*sides, strict=True))


def _without_held_out(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs without those that have a held-out phrase, however it is typed."""
    lines = (RECIPES / "everyday-held-out.tsv").read_text(encoding="utf-8").splitlines()
    held_out = {_letters(line.split("\t")[-1]) for line in lines}
    return [pair for pair in pairs if held_out.isdisjoint(map(_letters, pair))]


def _letters(text: str) -> str:
    """Return the small letters and digits of a text, without umlauts."""
    return re.sub(r"\W", "", text.translate(_WITHOUT_UMLAUTS).casefold())


def _write_pairs(path: Path, pairs: list[Pair]) -> int:
    """Write a file per language without repeated and held-out pairs, and return the number of pairs."""
    kept = _without_held_out(dict.fromkeys(pairs))
    for column, language in enumerate(_LANGUAGES):
        write_atomically(
            path.with_name(f"{path.name}.{language}"), "".join(f"{pair[column]}\n" for pair in kept).encode()
        )
    return len(kept)
