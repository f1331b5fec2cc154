"""Elements around words stay on the words: with the model of the package, in every kind of document."""

import io
import json
import logging
import random
import re
from collections.abc import Callable, Sequence
from html import unescape
from typing import Any

import docx
import numpy as np
import pytest
from relattn_mt.bundle import PACKAGED, read_bundle
from relattn_mt.config import SearchConfig
from relattn_mt.text.alignment import align_words
from relattn_mt.text.marked import Marked
from relattn_mt.text.place import place
from relattn_mt.text.strip import strip
from relattn_mt.tokens.tokenizer import SpecialTokens
from relattn_mt.translate.documents import translate_document, translate_texts
from relattn_mt.translate.options import DEFAULTS
from relattn_mt.translate.translator import Translator

from tests.support.engines import TextEngine, in_order
from tests.support.marked import Characters, marked, notation

COUNT = 200  # elements per direction
ENGLISH = """
I have never seen this house.
She gave me the book that you wanted.
Do not open the door.
We want to buy a new car in the city.
My brother works in a small school.
The children play with the dog in the garden.
He drinks coffee every morning.
Our friends live in a big house.
The train to the city is late today.
Can you help my mother in the kitchen?
They read the letter and went home.
The water in the river is very cold.
I ate an apple and some bread.
The teacher wrote a long letter to my father.
She opened the window because it was warm.
We have time and money.
You must not forget the key.
The old man sat on the table.
It is raining and I have no umbrella.
My sister plays music in the evening.
The doctor asked me a question.
I think that the film was very good.
The woman with the red hat is my aunt.
He bought milk and a fish at the market.
The night was dark and the street was empty.
"""
GERMAN = """
Ich habe dieses Haus noch nie gesehen.
Sie gab mir das Buch, das du wolltest.
Öffne die Tür nicht!
Wir wollen ein neues Auto in der Stadt kaufen.
Mein Bruder arbeitet in einer kleinen Schule.
Die Kinder spielen mit dem Hund im Garten.
Er trinkt jeden Morgen Kaffee.
Unsere Freunde wohnen in einem großen Haus.
Der Zug in die Stadt ist heute spät.
Kannst du meiner Mutter in der Küche helfen?
Sie lasen den Brief und gingen nach Hause.
Das Wasser im Fluss ist sehr kalt.
Ich habe einen Apfel und etwas Brot gegessen.
Der Lehrer schrieb meinem Vater einen langen Brief.
Sie öffnete das Fenster, weil es warm war.
Wir haben Zeit und Geld.
Du darfst den Schlüssel nicht vergessen.
Der alte Mann saß auf dem Tisch.
Es regnet und ich habe keinen Regenschirm.
Meine Schwester spielt am Abend Musik.
Der Arzt stellte mir eine Frage.
Ich denke, dass der Film sehr gut war.
Die Frau mit dem roten Hut ist meine Tante.
Er kaufte Milch und einen Fisch auf dem Markt.
Die Nacht war dunkel und die Straße war leer.
"""
DICTIONARY = """
house Haus|book Buch|door Tür|car Auto|city Stadt|brother Bruder|school Schule|children Kinder|dog Hund|garden Garten
coffee Kaffee|friends Freunde|train Zug|mother Mutter|kitchen Küche|letter Brief|water Wasser|river Fluss|cold kalt
apple Apfel|bread Brot|teacher Lehrer|father Vater|window Fenster|warm warm|time Zeit|money Geld|key Schlüssel|man Mann
table Tisch|umbrella Regenschirm|sister Schwester|music Musik|evening Abend|doctor Arzt|question Frage|good gut
woman Frau|red roten|hat Hut|aunt Tante|milk Milch|fish Fisch|market Markt|night Nacht|dark dunkel|street Straße|we wir
and und|today heute|never nie|I ich|very sehr|empty leer|old alte|small kleinen|new neues|my meine|not nicht
"""
PAIRS = [tuple(pair.split()) for line in DICTIONARY.split("\n") for pair in line.split("|") if pair]
SURE = {"en": {a.lower(): b.lower() for a, b in PAIRS}, "de": {b.lower(): a.lower() for a, b in PAIRS}}
LINES = {"en": ENGLISH.strip().split("\n"), "de": GERMAN.strip().split("\n")}


def words_in(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def elements(language: str) -> list[tuple[str, str, str]]:
    """Return sentences in three parts, of which the middle one, of one word or three, is in an element."""
    draw, found = random.Random(1), []
    for number in range(COUNT):
        line = LINES[language][number % len(LINES[language])]
        words = [match.span() for match in re.finditer(r"\w+", line)]
        count = draw.choice([1, 1, 3])
        first = draw.randrange(len(words) - count + 1)
        begin, end = words[first][0], words[first + count - 1][1]
        found.append((line[:begin], line[begin:end], line[end:]))
    return found


Parts = Sequence[tuple[str, str, str]]


def html(parts: Parts) -> bytes:
    return "".join(f"<p>{a}<a href='x'>{b}</a>{c}</p>\n" for a, b, c in parts).encode()


def markdown(parts: Parts) -> bytes:
    return "".join(f"{a}[{b}](x.md){c}\n\n" for a, b, c in parts).encode()


def bold_markdown(parts: Parts) -> bytes:
    return "".join(f"{a}**{b}**{c}\n\n" for a, b, c in parts).encode()


def strings(parts: Parts) -> bytes:
    return json.dumps({str(i): f"{a}<b>{b}</b>{c}" for i, (a, b, c) in enumerate(parts)}, ensure_ascii=False).encode()


def catalog(parts: Parts) -> bytes:
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    return (head + "".join(f'msgid "{a}<0>{b}</0>{c}"\nmsgstr ""\n\n' for a, b, c in parts)).encode()


def xliff(parts: Parts) -> bytes:
    unit = "<trans-unit id='{}'><source>{}<g id='1'>{}</g>{}</source></trans-unit>"
    units = "".join(unit.format(i, *part) for i, part in enumerate(parts))
    return f"<xliff version='1.2'><file source-language='x'><body>{units}</body></file></xliff>".encode()


def captions(parts: Parts) -> bytes:
    times = "00:00:01,000 --> 00:00:09,000"
    return "".join(f"{i}\n{times}\n{a}<i>{b}</i>{c}\n\n" for i, (a, b, c) in enumerate(parts, start=1)).encode()


def word(parts: Parts) -> bytes:
    document, out = docx.Document(), io.BytesIO()
    for part in parts:
        paragraph = document.add_paragraph()
        for number, text in enumerate(part):
            paragraph.add_run(text).bold = True if number == 1 else None
    document.save(out)
    return out.getvalue()


def bold_of(content: bytes) -> list[str]:
    paragraphs = docx.Document(io.BytesIO(content)).paragraphs
    return ["".join(run.text for run in each.runs if run.bold) for each in paragraphs]


def found_by(pattern: str) -> Callable[[bytes], list[str]]:
    return lambda content: [unescape(each) for each in re.findall(pattern, content.decode(), re.DOTALL)]


KINDS: dict[str, tuple[str, Callable[[Parts], bytes], Callable[[bytes], list[str]]]] = {
    "page": ("a.html", html, found_by("<a href='x'>(.*?)</a>")),
    "links of Markdown": ("a.md", markdown, found_by(r"\[(.*?)\]\(x\.md\)")),
    "bold Markdown": ("b.md", bold_markdown, found_by(r"\*\*(.*?)\*\*")),
    "strings": ("a.json", strings, found_by("<b>(.*?)</b>")),
    "catalog": ("a.po", catalog, found_by('msgstr "[^"]*<0>(.*?)</0>')),
    "XLIFF": ("a.xlf", xliff, found_by("<target[^>]*>[^<]*<g id='1'>(.*?)</g>")),
    "captions": ("a.srt", captions, found_by("<i>(.*?)</i>")),
    "Word": ("a.docx", word, bold_of),
}
LANGUAGES = [("en", "de"), ("de", "en")]


@pytest.fixture(scope="module")
def model() -> Translator:
    return read_bundle(PACKAGED / "everyday-en-de").translator()


@pytest.fixture(scope="module", params=LANGUAGES, ids="-".join)
def measured(request, model) -> tuple[str, Parts, list[str], list[str], int]:
    """Return the language, elements, their texts in the translations, the translations and the number of guesses."""
    source, target = request.param
    translator, parts, inner, guesses = model.with_languages(source, target), elements(source), [], []
    handler = logging.Handler()
    handler.emit = lambda record: guesses.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("relattn_mt.translate.translation")
    log.addHandler(handler)
    share = COUNT // len(KINDS)
    try:
        for number, (name, make, find) in enumerate(KINDS.values()):
            own = parts[number * share : (number + 1) * share]
            found = find(translate_document(translator, name, make(own), DEFAULTS).content)
            assert len(found) == len(own), name
            inner += found
    finally:
        log.removeHandler(handler)
    return target, parts, inner, translator.translate(["".join(part) for part in parts]), len(guesses)


def shares(source_words: dict[str, str], parts: Parts, inner: Sequence[str], whole: Sequence[str]) -> float:
    """Return the share of the words with a sure translation whose element has it."""
    sure = held = 0
    for (before, middle, after), text, translation in zip(parts, inner, whole, strict=True):
        for each in words_in(middle):
            expected = source_words.get(each)
            is_unique = (
                words_in(before + middle + after).count(each) == 1 == words_in(translation).count(expected or "")
            )
            sure += is_unique
            held += is_unique and expected in words_in(text)
    assert sure > COUNT / 4
    return held / sure


def test_no_element_is_empty_and_few_are_guesses(measured):
    _, _, inner, _, guesses = measured
    assert [text for text in inner if not words_in(text)] == []
    assert guesses <= 0.05 * COUNT


def test_elements_hold_the_translations_of_their_words(measured):
    target, parts, inner, whole, _ = measured
    sure = SURE["de" if target == "en" else "en"]
    assert shares(sure, parts, inner, whole) >= 0.85
    shuffled = [*inner[1:], inner[0]]
    assert shares(sure, parts, shuffled, whole) < 0.2


# ---- translators that change words ----

TEXTS = [
    "one <m0>two</m0> three four",
    "<m0>One</m0> two <m1>three four</m1>",
    "one <m0>two <m1>three</m1></m0> four.",
    "One (<m0>two</m0>), <m1>“three”</m1> four",
    "one <m0>two</m0><m1>three</m1> four",
    "<m0>one two three four</m0>",
    "one<m0/> two <m1>three<m2/></m1> four",
    "<m0>one</m0>/<m1>two</m1> three-<m2>four</m2>",
    "one <m0>t<m1>w</m1>o</m0> three",
]


def fake(change: Callable[[str], str], links: Callable[[str, str], list[tuple[int, int]]] = in_order) -> Translator:
    """Return a translator that changes a text. `links` returns the links of its words."""
    tokenizer: Any = Characters()
    return Translator(TextEngine(tokenizer, change, links), tokenizer, SearchConfig(beam_size=1))  # type: ignore[arg-type]


def translated(translator: Translator, text: str) -> Marked:
    (found,) = translate_texts(translator, [marked(text)], DEFAULTS).texts
    return found


def inner_words(text: Marked) -> dict[int, list[str]]:
    """Return the words in each pair, in lower case."""
    pairs = [(text.marks[i], text.marks[j]) for i, j in text.pairs.items() if i < j]
    return {opening.item: words_in(text.text[opening.at : closing.at]) for opening, closing in pairs}


@pytest.mark.parametrize("text", TEXTS)
def test_nothing_moves_without_a_change_and_with_capitals(text):
    assert notation(translated(fake(str), text)) == text
    parts = re.split("(<[^>]*>)", text)
    assert notation(translated(fake(str.upper), text)) == "".join(x if x[:1] == "<" else x.upper() for x in parts)


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_marks_stay_on_words_that_are_reversed(text):
    """Each element has the words that it had. Words are those between spaces."""

    def reverse(line: str) -> str:
        return " ".join(line.split(" ")[::-1])

    def links(source: str, _: str) -> list[tuple[int, int]]:
        last = source.count(" ")
        return [(i, last - i) for i in range(last + 1)]

    found = translated(fake(reverse, links), text)
    assert found.text.split() == reverse(marked(text).text).split()
    expected = {item: sorted(words) for item, words in inner_words(marked(text)).items()}
    assert {item: sorted(words) for item, words in inner_words(found).items()} == expected


@pytest.mark.parametrize("dropped", range(4))
@pytest.mark.parametrize("text", TEXTS)
def test_no_element_is_empty_if_a_word_is_dropped(text, dropped):
    """The words of an element that are left stay in it, and one without any takes another word."""

    def drop(line: str) -> str:
        words = line.split(" ")
        return " ".join(words[:dropped] + words[dropped + 1 :])

    def links(source: str, _: str) -> list[tuple[int, int]]:
        count = source.count(" ") + 1
        return [(i, i - (i > dropped)) for i in range(count) if i != dropped]

    found = translated(fake(drop, links), text)
    assert found.text.split() == drop(marked(text).text).split()
    left = set(words_in(drop(strip(marked(text)).line)))
    for item, words in inner_words(marked(text)).items():
        inner = inner_words(found)[item]
        assert inner
        assert left.intersection(words) <= {*inner}


@pytest.mark.parametrize(
    ("text", "translation", "links", "expected", "warns"),
    [
        # the nearest word without a link, and then the nearest one
        ("one <m0>two</m0> three", "Eins Zwei Drei", [(0, 0), (2, 2)], "Eins <m0>Zwei</m0> Drei", True),
        ("one <m0>two</m0> three", "Eins Drei", [(0, 0), (2, 1)], "Eins <m0>Drei</m0>", True),
        # not a word that another element has
        ("<m0>one</m0> <m1>two</m1> three", "Eins Drei", [(0, 0), (2, 1)], "<m0>Eins</m0> <m1>Drei</m1>", True),
        # if there is no other word, elements nest; so they do if their words have one translation
        ("<m0>one</m0> <m1>two</m1>", "Eins", [(0, 0)], "<m0><m1>Eins</m1></m0>", True),
        ("<m0>o</m0><m1>ne</m1>", "Xyz", [(0, 0)], "<m0><m1>Xyz</m1></m0>", False),
        # an element in another one stays there
        ("<m0>one <m1>two</m1></m0> three", "Drei Eins", [(0, 1), (2, 0)], "Drei <m0><m1>Eins</m1></m0>", True),
        # a sign is no word
        ("one <m0>two</m0> three", "– Drei", [(1, 0), (2, 1)], "– <m0>Drei</m0>", True),
        # an element without a letter or digit may be empty
        ("one <m0>–</m0> two", "Eins Zwei", [(0, 0), (2, 1)], "Eins<m0></m0> Zwei", False),
    ],
)
def test_an_element_without_an_aligned_word_takes_the_nearest_one(caplog, text, translation, links, expected, warns):
    found = translated(fake(lambda _: translation, lambda *_: links), text)
    assert notation(found) == expected
    assert [("is a guess" in message) for message in caplog.messages] == [True] * warns


def test_the_target_word_that_looks_at_a_source_word_most_is_no_guess():
    """A source word without a link: a target word has more weight on another word, but the most on this one."""
    pieces = ["▁a", "▁b", "▁c"]
    weights = np.array([[0.6, 0.3, 0.1, 0.0], [0.1, 0.05, 0.8, 0.05], [0.0, 0.01, 0.9, 0.0], [0.0, 0.0, 0.0, 1.0]])
    alignment = align_words(weights, pieces, ["▁x", "▁y", "▁z"], SpecialTokens())
    assert alignment.links == [(0, 0), (2, 1), (2, 2)]
    assert alignment.likeliest == [0, 0, 2]
    placed, guessed = place(strip(marked("a <m0>b</m0> c")), "x y z", *alignment)
    assert notation(placed) == "<m0>x</m0> y z"
    assert not guessed
