"""Tags, placeholders and the like: taken out of a line, and put back where its words have gone."""

from __future__ import annotations

import random
import re
import time
from collections import Counter

import pytest

from relattn.translation.translate.tags import restore_tags, strip_tags

SAME = [
    *("<b>", "<i>", "<u>", "</b>", "</i>", "</u>", "<br/>", "{name}", "{{v}}", "%s", "%d", "%(n)s", "%%"),
    *("https://x.org/a?b=c", "me@x.de", "5\u00a0km", "12.5%"),
]


def straight(line: str) -> list[tuple[int, int]]:
    """The alignment of a line with itself."""
    return [(i, i) for i in range(len(line.split(" ")))]


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("click %s now", "click now"),
        ("Hello {name}, welcome", "Hello, welcome"),
        ("A <b>big dog</b> runs.", "A big dog runs."),
        ("(see https://x.org/a_(b). Or <i>this</i>)", "(see). Or this)"),
        ("un<b>believ</b>able", "unbelievable"),
        ("5 km, 12.5% and 3 GB", ", and"),
        ("{a} {b}", ""),
        ("all {a}", "all"),
        ("mail me@x.de now", "mail now"),
        ("$5 or €1,000.50, not 5 nor x$5", "or, not 5 nor x$5"),
        ("50 of %d%% <!-- a note -->", "50 of"),
        ("a < b > c, 100 % {not a name} 5 kmh 10%s", "a < b > c, {not a name} 5 kmh 10%s"),
        ("no tags  at   all ", "no tags  at   all "),
        ("", ""),
    ],
)
def test_what_is_not_to_be_translated_is_taken_out(line, left):
    assert strip_tags(line).line == left


@pytest.mark.parametrize(
    "line",
    [
        "click %s now",
        "Hello {name}, welcome",
        "A <b>big dog</b> runs.",
        "see https://x.org/a.b. Or (<i>this</i>)",
        "<b><i>a</i> b</b> c",
        "mail me@x.de, $5 or 3 GB <br/> end <br> x",
        "x={v} {n}th (%s) -%d",
        "all {a} {b}",
        "<p>{a}</p>",
        "{a} <b>c</b> {d}",
        "<b>{x} c %s</b>",
        "plain",
    ],
)
def test_words_that_stay_where_they_are_give_the_line_back(line):
    of = strip_tags(line)
    assert restore_tags(of, of.line, straight(of.line)) == (line, [])


@pytest.mark.parametrize(
    ("line", "translation", "links", "expected"),
    [
        (
            "a <b>big dog</b> runs",
            "läuft groß Hund ein",
            [(3, 0), (1, 1), (2, 2), (0, 3)],
            "läuft <b>groß Hund</b> ein",
        ),
        ("I saw <b>him</b>.", "ihn. sah ich", [(2, 0), (1, 1), (0, 2)], "<b>ihn</b>. sah ich"),
        ("put {x} down", "ab legen", [(2, 0), (0, 1)], "ab legen {x}"),
        ("the {x}-file is", "ist die Datei", [(2, 0), (0, 1), (1, 2)], "ist die {x}Datei"),
        # one word between is from none: it goes along; one from elsewhere does not
        ("<b>a b</b> c", "A x B C", [(0, 0), (1, 2), (2, 3)], "<b>A x B</b> C"),
        ("<b>a b</b> c", "A C B", [(0, 0), (2, 1), (1, 2)], "<b>A</b> C B"),
        ("<b>a</b> <i>b</i>", "B A B", [(1, 0), (0, 1), (1, 2)], "<i>B</i> <b>A</b> B"),
        # outer tags go around all that inner ones do
        ("<b>a <i>b</i> c d</b> e", "B E A C D", [(1, 0), (4, 1), (0, 2), (2, 3), (3, 4)], "<b><i>B</i> E A C D</b>"),
        ("a {x} b", "A B A", [(0, 0), (1, 1), (0, 2)], "A B A {x}"),
        ("<b>a <i>b</i></b> c", "B C A", [(1, 0), (2, 1), (0, 2)], "<b><i>B</i></b> C A"),
    ],
)
def test_tags_follow_their_words(line, translation, links, expected):
    assert restore_tags(strip_tags(line), translation, links) == (expected, [])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "part", ["a", "<!--", "<a ", "{{", "1.", "%0", "http://", "a@", "<b>", "<b>x</b>", "$1,", "www."]
)
def test_long_lines_are_read_in_a_moment(part):
    start = time.process_time()
    of = strip_tags(part * (16_000 // len(part)))
    restore_tags(of, of.line, straight(of.line))
    assert time.process_time() - start < 2


def test_what_closes_what():
    assert strip_tags("<b><i>x</b> y</b> z</i>").opening == {2: 0}
    assert strip_tags("<b><b>x</b><br>y</b> <I>z</i></u>").opening == {2: 1, 4: 0, 6: 5}


def test_a_place_that_nothing_tells_is_reported():
    assert restore_tags(strip_tags("a {x} b"), "A B", []) == ("A B {x}", ["{x}"])
    assert restore_tags(strip_tags("a b {x} c d"), "A D", [(0, 0), (3, 1)]) == ("A {x} D", ["{x}"])
    assert restore_tags(strip_tags("a <b>c</b> d"), "A D", [(0, 0), (2, 1)]) == ("A<b></b> D", [])
    assert restore_tags(strip_tags("{x} <b>{y}</b>"), "", []) == ("{x} <b>{y}</b>", [])


def nested(tags: list[str]) -> bool:
    """Whether tags of markup close each other in order."""
    opened: list[str] = []
    for tag in tags:
        if tag.startswith("</"):
            if not opened or opened.pop() != tag[2:-1]:
                return False
        else:
            opened.append(tag[1:-1])
    return not opened


def test_whatever_goes_in_comes_out_once():
    """Lines of words, tags and spaces at random, any alignment: every tag comes out, and the words as they were."""
    source = random.Random(3)
    for _ in range(3000):
        parts = [source.choice([*SAME, "ab", "c.", "(d", "e"]) for _ in range(source.randint(0, 9))]
        line = "".join(part + source.choice([" ", " ", ""]) for part in parts)
        of = strip_tags(line)
        words = [f"w{i}" + source.choice(["", ".", ")"]) for i in range(source.randint(0, 6))]
        count = len(of.line.split())
        links = [(source.randrange(count), i) for i in range(len(words)) if count and source.random() < 0.8]
        text, guessed = restore_tags(of, " ".join(words), links)
        taken = Counter(tag.text for tag in of.tags)
        if not of.line.strip():
            assert text == line
            continue
        rest = text
        for tag in sorted(taken, key=len, reverse=True):
            assert rest.count(tag) == taken[tag], (line, text)
            rest = rest.replace(tag, " ")
        assert rest.replace(" ", "") == "".join(words)
        assert Counter(guessed) <= taken
        assert "  " not in text


def test_pairs_that_do_not_cross_do_not_come_to():
    source = random.Random(5)
    for _ in range(2000):
        words = [f"s{i}" for i in range(6)]
        a, b, c, d = sorted(source.sample(range(7), 4))
        spans = [("b", a, b), ("i", c, d)] if source.random() < 0.5 else [("b", a, d), ("i", b, c)]
        opened = {first: f"<{name}>" for name, first, _ in reversed(spans)}
        closed = {last: f"</{name}>" for name, _, last in spans}
        line = "".join(
            closed.get(i, "") + " " * (0 < i < 6) + opened.get(i, "") + "".join(words[i : i + 1]) for i in range(7)
        )
        links = [(source.randrange(6), i) for i in range(6) if source.random() < 0.85]
        text, _ = restore_tags(strip_tags(line), "A B C D E F", links)
        assert nested(re.findall(r"</?[bi]>", text)), (line, links, text)
