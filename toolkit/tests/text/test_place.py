"""Tags, placeholders and other parts that are not translated: removed from a line, and restored in its translation."""

import re
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.text.marked import Mark, Marked
from relattn_mt.text.patterns import literal_pattern, tag_pattern
from relattn_mt.text.place import place
from relattn_mt.text.strip import StrippedText, strip
from relattn_mt.tokens.normalization import normalize

from tests.support.marked import marked, notation

TAGS = [
    *("<b>", "<i>", "<u>", "</b>", "</i>", "</u>", "<br/>", "{name}", "{{v}}", "%s", "%d", "%(n)s", "%%"),
    *("https://x.org/a?b=c", "me@x.de", "5\u00a0km", "12.5%"),
]


def strip_tags(line: str) -> StrippedText:
    return strip(Marked(line), tag_pattern())


def restore_tags(stripped: StrippedText, translation: str, links: list[tuple[int, int]]) -> tuple[str, list[str]]:
    placed, guessed = place(stripped, translation, links)
    assert not placed.marks
    return placed.text, guessed


def identity(line: str) -> list[tuple[int, int]]:
    """Return the alignment of a line with itself."""
    return [(i, i) for i in range(len(line.split(" ")))]


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("click %s now", "click now"),
        ("(see https://x.org/a_(b). Or <i>this</i>)", "(see. Or this)"),
        ("<b><i>a</i> b</b> c", "a b c"),
        ("5 km, 12.5% and 3 GB", "and"),
        ("mail me@x.de, $5 or 3 GB <br/> end <br> x", "mail, or end x"),
        ("x={v} {n}th (%s) -%d", "x= th -"),
        ("all {a} <b>c</b>{d}{v} e", "all c e"),
        ("<b>May </b><i>3</i>, 1999", "May 3, 1999"),
        ("a <b>b </b>c<i> d</i>", "a b c d"),
        ("{a} {b}", ""),
        ("<b>{x} c %s</b>", "c"),
        ("$5 or €1,000.50, not 5 nor x$5 nor $5.50h", "or, not 5 nor x$5 nor $5.50h"),
        ("50 of %d%% <!-- a note -->", "50 of"),
        ("May 1943; <b>43.6%</b>; CHF8", "May 1943; CHF8"),
        ("<b><i>4 kg</i></b>, a, <u>5 km</u>, {x}; b (<b>$5</b>), {y}.", "a; b."),
        ("a {x}{y} b <b>{x}</b>c", "a b c"),
        ("a; <b> 3 % </b>; «%s» b<u> {x} {y}</u>, {x}: c", "a; b: c"),
        ("<b>5 km a {x}</b><i>{y}b 7 kg</i>; {y}", "a b"),
        ("a<br/>$5 <br/>b 5 km<sup>2</sup>", "a b 2"),
        ("a < b > c, 100 % {a name} 5 kmh 10%s \\a{b c}", "a < b > c, 5 kmh 10%s \\a{b c}"),
        ("no tags  at   all ", "no tags  at   all "),
        # two words without a space between them stay two
        ("b→c? 😀d, x{n}y<br>z <br/>e", "b c? d, x y z e"),
        ("a<b>😀b</b>{x}c (→d)", "a b c (d)"),
        ("", ""),
    ],
)
def test_stripped_lines_and_their_restoration(line, left):
    stripped = strip_tags(line)
    assert stripped.line == left
    assert restore_tags(stripped, left, identity(left)) == (line, [])


@pytest.mark.parametrize(
    ("line", "translation", "sources", "expected", "guessed"),
    [  # sources: the source word of each target word, "-" for none
        ("a <b>big dog</b> runs", "läuft groß Hund ein", "3120", "läuft <b>groß Hund</b> ein", []),
        ("I saw <b>him</b>.", "ihn. sah ich", "210", "<b>ihn</b>. sah ich", []),
        ("put {x} down", "ab legen", "-0", "ab legen {x}", []),
        ("the {x}-file is", "ist die Datei", "201", "ist die {x}Datei", []),
        # a word without alignment between two of a pair is enclosed, and one that is aligned elsewhere if it is alone
        ("<b>a b</b> c", "A x B C", "0-12", "<b>A x B</b> C", []),
        ("<b>a b</b> c", "A C B", "021", "<b>A C B</b>", []),
        ("<b>a b</b> c d", "A C D B", "0231", "<b>A</b> C D B", []),
        ("<b>a b</b> <i>c</i>", "A C B", "021", "<b>A</b> <i>C</i> B", []),
        ("<b>a</b> <i>b</i>", "B A B", "101", "<i>B</i> <b>A</b> B", []),
        # outer tags enclose all that inner tags do
        ("<b>a <i>b</i> c d</b> e", "B E A C D", "14023", "<b><i>B</i> E A C D</b>", []),
        ("a {x} b", "A B A", "010", "A B A {x}", []),
        ("<b>a <i>b</i></b> c", "B C A", "120", "<b><i>B</i> C A</b>", []),
        # as much punctuation stays within a pair as in the line
        ("a <b>(b)</b>. <i>“c</i>”, d", "A (B). “C”; D", "0123", "A <b>(B)</b>. <i>“C</i>”; D", []),
        ("a (<b>“b” c</b>). d", "A („B“ C). D", "0123", "A (<b>„B“ C</b>). D", []),
        ("a <b>b</b> c.", "C A, B.", "201", "C A, <b>B</b>.", []),
        ("a <b>b</b> c.", "C B, A.", "210", "C <b>B</b>, A.", []),
        ("<b>a b.</b>", "B A.", "10", "<b>B A.</b>", []),
        ("<b>a b</b>", "B A.", "10", "<b>B A.</b>", []),
        ("a <b>b c.</b> d", "D. A C B.", "3021", "D. A <b>C B.</b>", []),
        ("a, <b>b</b> c.", "z.B. A, C.", "102", "<b>z.B.</b> A, C.", []),
        ("a {x} b.", "B A.", "10", "B A {x}.", []),
        ("a {x}, b.", "A, B!", "01", "A {x}, B!", []),
        ("a, {x} b.", "A, B.", "01", "A, {x} B.", []),
        ("a<u> </u>b c.", "A, B.", "01", "A,<u> </u>B.", []),
        # a literal between two words without spaces
        ("a→b c", "B A C", "102", "B A→C", []),
        # neighbours without alignment
        ("a {x} b", "A B", "--", "A {x} B", ["{x}"]),
        ('"https://x.org/(b)“ a', "A", "0", "https://x.org/(b) A", []),
        ("a b {x} c d", "A D", "03", "A {x} D", ["{x}"]),
        ("{x} a b", "A B", "--", "{x} A B", ["{x}"]),
        # emoji at the ends of a line stay there, others follow the words
        ("→ a b.", "B A.", "10", "→ B A.", []),
        ("a b. 😀", "B. A", "10", "B. A 😀", []),
        ("a 😀 b", "B A", "10", "B A 😀", []),
        ("a <b>c</b> d", "A D", "02", "A <b>D</b>", ["<b>"]),
        ("{x} <b>{y}</b>", "", "", "{x} <b>{y}</b>", []),
        # a pair that encloses nothing stays in the pair around it
        ("<b>a<i></i></b> b", "B A", "10", "B <b>A<i></i></b>", []),
        # tags within a word: the part before or after them is the same in the translation
        ("<b>H<sub>2</sub>O</b> a", "A H2O", "10", "A <b>H<sub>2</sub>O</b>", []),
        ("12.5<b>xy</b>", "12,5 xy", "00", "12,5 <b>xy</b>", []),
        ("<i>12.5</i><b>xy</b>.", "12,5 xy.", "00", "<i>12,5</i> <b>xy</b>.", []),
        ("a<b>b<i></i><u> c</u></b>d", "AB", "0", "A<b><i></i><u>B</u></b>", ["<u>"]),
        ("un<b>wise</b> a", "A dumm", "10", "A <b>dumm</b>", []),
        ("<u>p</u><b>qr</b> a", "A xyz", "10", "A <u><b>xyz</b></u>", []),
        # numbers and placeholders keep their distance and their pair, and items of a list their place
        ("May 1943; <b>43.6%</b>; CHF8", "Mai 1943; CHF 8", "0122", "Mai 1943; <b>43.6%</b>; CHF 8", []),
        ("May 5; <b>43.6%</b>; c", "5. Mai; c", "102", "5. Mai; <b>43.6%</b>; c", []),
        ("5 km; a b; <i>7 kg</i>", "B A", "10", "5 km; B A; <i>7 kg</i>", []),
        ("a <b>$5</b> b", "A B", "01", "A <b>$5</b> B", []),
        ("a <b>5 km b</b> c", "C B A", "210", "C <b>5 km B</b> A", []),
        ("a <b>b c 5 km</b> d", "D C B A", "3210", "D <b>C B 5 km</b> A", []),
        ("a <b>b {x} c</b> d", "B A D C", "1032", "<b>B {x}</b> A D C", []),
        ("{x}{y} a 12", "12 A", "10", "12 {x}{y} A", []),
        ("a12 <b>5 km</b>", "12a", "-", "12a <b>5 km</b>", ["<b>5 km</b>"]),
        ("$5%s: a", "16:08: A", "01", "$5 16:08: A", []),
        ("a <b>b $5 c</b> d", "A1 D", "03", "<b>A1 $5</b> D", ["<b>", "$5"]),
        ("12<b>b 5 km</b> c", "C12 B", "10", "C12 <b>B 5 km</b>", []),
        # spaces and punctuation in a pair
        ("<u>a </u><b>b</b>, c", "B A C", "102", "<b>B</b> <u>A </u>C", []),
        ("a<b> b</b><i>, c</i>", "A B, C", "012", "A<b> B</b><i>, C</i>", []),
        ("a<b> b</b><i>, c</i>", "C A B,", "201", "<i>C</i> A<b> B</b>,", []),
        ("<u>a </u><b>b </b>c", "B A C", "102", "<b>B </b><u>A </u>C", []),
        # a word is in a pair with more than its punctuation
        ("<b>a (</b>b) c", "(B) A C", "102", "(B) <b>A</b> C", []),
        ("a (b<b>) c</b>", "C A (B)", "201", "<b>C</b> A (B)", []),
    ],
)
def test_tags_follow_their_words(line, translation, sources, expected, guessed):
    links = [(int(source), place) for place, source in enumerate(sources) if source != "-"]
    assert restore_tags(strip_tags(line), translation, links) == (expected, guessed)
    if not guessed:
        assert restore_tags(strip_tags(line), f"{translation} ", links)[0].rstrip() == expected


@pytest.mark.parametrize("space", ["\u00a0", "\t", "\u202f", " \u200b ", "\u200e \u2060\u200f", "\ufeff  "])
def test_words_are_those_of_the_tokenizer(space):
    """All spaces separate words, and invisible characters are none, so that alignments point to the right words."""
    line = "a {x} b <i>c</i> «&»: 5\u00a0km d 😀 e"
    stripped, plain = strip_tags(line.replace(" ", space)), strip_tags(line)
    assert normalize(stripped.line) == plain.line == re.sub(" +", " ", stripped.line)
    assert [(tag.content.text, tag.left, tag.right) for tag in stripped.tags] == [
        (tag.content.text, tag.left, tag.right) for tag in plain.tags
    ]
    assert normalize(restore_tags(stripped, plain.line, identity(plain.line))[0]) == normalize(line)


@pytest.mark.parametrize("character", ["\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"])
def test_characters_that_are_none_stay_in_the_text(character):
    stripped = strip_tags(f"a{character} {{x}} b")
    text, _ = restore_tags(stripped, "A B", [(0, 0), (1, 1)])
    assert text.replace(character, "") == "A {x} B"
    assert text.count(character) == 1


def test_pairs_of_tags():
    """Tags of which one begins or ends within another pair, or that have no other one, are single."""
    assert strip_tags("un<b>believ</b>able").line == "unbelievable"

    def kinds(line: str) -> list[str]:
        return [tag.kind for tag in strip_tags(line).tags]

    assert kinds("<b><i>x</b> y</b> z</i>") == ["open", "single", "close", "single", "single"]
    assert kinds("<b><b>x</b><br>y</b> <I>z</i></u>") == [
        "open",
        "open",
        "close",
        "single",
        "close",
        *kinds("<I>z</i></u>"),
    ]
    assert kinds("<I>z</i></u>") == ["open", "close", "single"]


PARTS = [
    "a", "<!--", "<a ", "{{", "1.", "%0", "http://", "https://(", "www.{", "a@", "<b>", "<b>x</b>", "$1,", "www.",
    "<", "a {x} ", "(", "{x}, ", "a; $5; ", "({x})", "a::", "\\(", "a.b.", "/a", "$x^", "1.2.3-", "00:",
    "-../", "%1", "<code>", "<code>word ", "<code><kbd>", "mailto:", "\\(word ", "....",
]  # fmt: skip


def test_time_is_linear_in_the_length_of_a_line_and_the_number_of_marks():
    for line in ["%" + "0" * 8000, *(part * (8000 // len(part)) + "a" for part in PARTS)]:
        start = time.process_time()
        stripped = strip_tags(line)
        restore_tags(stripped, stripped.line, identity(stripped.line))
        assert time.process_time() - start < 0.5, line[:10]
    start = time.process_time()
    place(strip(Marked("a {x} ", tuple(Mark(6, "single", i) for i in range(8000))), tag_pattern()), "x", [(0, 0)])
    assert time.process_time() - start < 1
    stripped = strip_tags("<b>a</b> b " * 4000 + "c")
    start = time.process_time()
    restore_tags(stripped, stripped.line.upper(), identity(stripped.line))
    assert time.process_time() - start < 1


@pytest.mark.parametrize("target_words", [1, 20, 2000])
@pytest.mark.parametrize("part", ["<b>ab</b> cd ", "<b>ab</b> {x}, ", "<b>ab</b>/"])
def test_time_is_near_linear_in_the_number_of_elements_without_a_link(part, target_words):
    """Their places are guesses, each among a few words near the place where it is expected."""
    stripped = strip_tags(part * 1000)
    start = time.process_time()
    text, _ = restore_tags(stripped, " ".join(["x"] * target_words), [])
    assert time.process_time() - start < 1.2
    assert text.count("<b>") == text.count("</b>") == 1000


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.sampled_from([*TAGS, "ab", "c.", "(d", "e"]), st.sampled_from([" ", " ", ""])), max_size=9),
    st.lists(st.tuples(st.sampled_from(["", ".", ")"]), st.none() | st.integers(0, 8)), max_size=6),
)
def test_each_tag_occurs_once_in_a_translation(parts, words):
    """The words stay as they are, for any line and any alignment."""
    line = "".join(part + space for part, space in parts)
    stripped = strip_tags(line)
    count = len(stripped.line.split())
    links = [(source, place) for place, (_, source) in enumerate(words) if source is not None and source < count]
    translation = [f"w{i}{mark}" for i, (mark, _) in enumerate(words)]
    text, guessed = restore_tags(stripped, " ".join(translation), links)
    if not stripped.line.strip():
        assert text == line
        return
    tags, rest = Counter(tag.content.text for tag in stripped.tags), text
    for tag in sorted(tags, key=len, reverse=True):
        assert rest.count(tag) == tags[tag]
        rest = rest.replace(tag, " ")
    assert rest.replace(" ", "") == "".join(translation)
    assert Counter(guessed) <= tags
    glued = re.compile(r"\w(?:5\u00a0km|12\.5%)|(?:5\u00a0km|12\.5%)\w")
    if not glued.search(re.sub("</?[biu]>|<br/>", "", line)):
        assert not glued.search(re.sub("</?[biu]>|<br/>", "", text))
    assert "  " not in text


WORDS = "ab cd, efg (h) i"


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, len(WORDS)), min_size=6, max_size=6),
    st.sampled_from(["b(i)(u)", "b(i(u))", "(b)(i)(u)", "(b(i)(u))", "(b)(i(u))"]),
    st.lists(st.sampled_from(["ab", "x", "cd", "g", "(h)", "y,"]), min_size=5, max_size=5),
    st.lists(st.none() | st.integers(0, 4), min_size=5, max_size=5),
)
def test_pairs_of_tags_do_not_overlap(cuts, shape, words, sources):
    """Pairs are nested in a translation, and none with a letter is empty, wherever they begin and end in the line."""
    tags, opened = [], []
    for name in re.findall(r"[biu]|\)", shape if shape[0] == "(" else f"({shape})"):
        if name == ")":
            tags.append(f"</{opened.pop()}>")
        else:
            opened.append(name)
            tags.append(f"<{name}>")
    line, begin = "", 0
    for tag, cut in zip(tags, sorted(cuts), strict=True):
        line, begin = line + WORDS[begin:cut] + tag, cut
    links = [(source, place) for place, source in enumerate(sources) if source is not None]
    line += WORDS[begin:]
    text, _ = restore_tags(strip_tags(line), " ".join(words), links)
    for name in "biu":
        inner = [
            found.group(1) if (found := re.search(f"<{name}>(.*)</{name}>", each)) else "" for each in (line, text)
        ]
        before, after = (re.search(r"\w", re.sub("<[^>]*>", "", each)) for each in inner)
        assert after or not before
    for tag in re.findall(r"</?[biu]>", text):
        if tag.startswith("</"):
            assert opened.pop() == tag[2]
        else:
            opened.append(tag[1])
    assert not opened
    assert re.sub("<[^>]*>", "", text).split() == words


@pytest.mark.parametrize(
    ("text", "left", "literals"),
    [
        ("Hi @<m0>ann</m0> and you", "Hi and you", ["@<m0>ann</m0>"]),
        ("<m0><m1>https://</m1><m2>x.org</m2></m0> is", "is", ["<m0><m1>https://</m1><m2>x.org</m2></m0>"]),
        ("a :blobcat: b %<count>d", "a b", [":blobcat:", "%<count>d"]),
        ("part one ........ two", "part one two", [" ........"]),
        ("part one ........ 17", "part one", [" ........ 17"]),
        ("Hi %{user}<m0>!</m0> a", "Hi! a", ["%{user}", "<m0>!</m0>"]),
    ],
)
def test_literals_stay_whole_with_the_marks_in_them(text, left, literals):
    stripped = strip(marked(text), literal_pattern())
    assert stripped.line == left
    words = left.upper().split()
    order = list(range(len(words)))
    order[-2:] = order[-2:][::-1]
    placed, _ = place(stripped, " ".join(words[i] for i in order), [(i, at) for at, i in enumerate(order)])
    assert all(notation(placed).count(each) == 1 for each in literals), notation(placed)
    assert notation(placed).count("<") == text.count("<")


def test_a_mark_that_stands_for_a_space_separates_words():
    text = Marked("onetwo", (Mark(3, "space", 0),))
    stripped = strip(text)
    assert stripped.line == "one two"
    placed, _ = place(stripped, "ZWEI EINS", [(0, 1), (1, 0)])
    assert placed.text in ("ZWEIEINS", "ZWEI EINS")
    assert len(placed.marks) == 1


def test_a_mark_within_a_tag_stays_there():
    line = "Click <b>here</b> <a href=x>now</a>."
    for at in range(len(line) + 1):
        text = Marked(line, (Mark(at, "single", 1),))
        stripped = strip(text, tag_pattern())
        placed, _ = place(stripped, stripped.line, identity(stripped.line))
        assert placed == text
