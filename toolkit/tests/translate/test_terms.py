"""Terms of a glossary in translations: where they are, and where they do not fit."""

import pytest
from relattn_mt import load
from relattn_mt.text.marked import Marked
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import SentenceOptions, TranslateOptions
from relattn_mt.translate.prepare import Sentence
from relattn_mt.translate.terms import translate_with_terms
from relattn_mt.translate.translation import Translation

from tests.support.marked import marked, notation

GLOSSARY = Glossary([(1, "file", "Dokument"), (2, "big", "riesig")])


@pytest.mark.parametrize(
    ("source", "plain", "constrained", "expected"),
    [
        ("Open the file", "Öffne die Datei", "Öffne das Dokument", "Öffne das Dokument"),
        ("Open the file", "Öffne das Dokument", "Öffne das Dokument auf", "Öffne das Dokument"),
        ("The file.", "", "Dokument", "Dokument"),
        ("Open the file.", "Öffne die Datei.", "Öffne die Datei. Dokument.", None),
        ("Open the file.", "Öffne die Datei.", "Öffne Datei. Das Dokument auf.", None),
        ("Open the file", "Öffne die Datei", "Dokument öffne die Datei", None),
        ("Open the file", "Öffne die Datei", "Öffne die Datei Dokument", None),
        ("a big file", "eine große Datei", "ein riesig Dokument", "ein riesig Dokument"),
        ("file and file", "Dokument und Datei", "Dokument und Dokument", "Dokument und Dokument"),
        ("Open the files", "Öffne die Dateien", "not asked for", "Öffne die Dateien"),
        ("Read {file}", "Lies {file}", "not asked for", "Lies {file}"),
    ],
)
def test_terms_replace_words_and_are_never_added(source, plain, constrained, expected):
    asked = []

    def translate(sentences):
        asked.append([sentence.options.glossary is not None for sentence in sentences.values()])
        texts = [constrained if sentence.options.glossary else plain for sentence in sentences.values()]
        return {number: [Translation(text, -1.0, [])] for number, text in zip(sentences, texts, strict=True)}

    sentence = Sentence(Marked(source), SentenceOptions(glossary=GLOSSARY))
    if GLOSSARY.find(source):
        ((best,),) = translate_with_terms({7: sentence}, translate).values()
        assert asked == [[False]] if "Dokument" in plain and expected == plain else [[False], [True]]
    else:
        ((best,),) = translate_with_terms(
            {7: sentence}, lambda each: {n: [Translation(plain, -1.0, [])] for n in each}
        ).values()
    assert best.text == (plain if expected is None else expected)
    assert best.warnings == (("terms",) if expected is None else ())


@pytest.mark.parametrize(
    ("plain", "by_terms", "expected", "warning"),
    [
        ("eine Haltestelle, fünf Stunden", {"fünf Minuten": "eine Haltestelle, fünf Minuten"}, "fünf Minuten", None),
        (
            "ein Bahnhof, fünf Minuten",
            {"Haltestelle": "eine Haltestelle, ganz nah", "Haltestelle, fünf Minuten": "fünf Minuten zur Haltestelle"},
            "Haltestelle, fünf Minuten",
            None,
        ),
        (
            "ein Bahnhof, fünf Minuten",
            dict.fromkeys(["Haltestelle", "Haltestelle, fünf Minuten"], "ein Bahnhof, fünf Minuten, Haltestelle"),
            None,
            "Haltestelle",
        ),
        ("ein Bahnhof", {"Haltestelle, fünf Minuten": "ein Bahnhof"}, None, "Haltestelle, fünf Minuten"),
    ],
)
def test_terms_that_the_translation_lacks_are_required_alone_at_first(plain, by_terms, expected, warning, caplog):
    glossary = Glossary(
        [(1, "station", "Haltestelle"), (2, "five minutes", "fünf Minuten"), (3, "minutes", "Protokoll")]
    )
    required = []

    def translate(sentences):
        ((number, sentence),) = sentences.items()
        terms = sentence.options.glossary and ", ".join(sentence.options.glossary.find(sentence.text.text))
        required.append(terms)
        return {number: [Translation(by_terms[terms] if terms else plain, -1.0, [])]}

    sentence = Sentence(Marked("a station, five minutes"), SentenceOptions(glossary=glossary))
    ((best,),) = translate_with_terms({7: sentence}, translate, "line").values()
    assert required == [None, *by_terms]
    assert best.text == (plain if expected is None else by_terms[expected])
    messages = [] if warning is None else [f"line 7: translated without terms that do not fit: {warning}"]
    assert caplog.messages == messages


def test_a_search_for_fewer_terms_does_not_return_fewer_translations():
    glossary = Glossary([(1, "station", "Haltestelle"), (2, "minutes", "Minuten")])
    found = {
        None: ["ein Bahnhof, Minuten", "ein Bahnhof", "Bahnhof, Minuten"],
        "Haltestelle": ["eine Haltestelle, Minuten", "eine Haltestelle", "Haltestelle"],
        "Haltestelle, Minuten": ["eine Haltestelle, Minuten", "Haltestelle, Minuten", "die Haltestelle, Minuten"],
    }

    def translate(sentences):
        ((number, sentence),) = sentences.items()
        terms = sentence.options.glossary and ", ".join(sentence.options.glossary.find(sentence.text.text))
        return {number: [Translation(text, -1.0 - rank, []) for rank, text in enumerate(found[terms])]}

    sentence = Sentence(Marked("a station, minutes"), SentenceOptions(glossary=glossary, n_best=3))
    (best,) = translate_with_terms({7: sentence}, translate, "line").values()
    assert [each.text for each in best] == found["Haltestelle, Minuten"]


def test_alternatives_do_not_have_terms_that_are_only_added():
    found = {False: ["Mein Hund", "Mein Hund ist da"], True: ["Mein Dokument", "Mein Hund Dokument", "Dokument da"]}

    def translate(sentences):
        ((number, sentence),) = sentences.items()
        texts = found[sentence.options.glossary is not None]
        return {number: [Translation(text, -1.0 - rank, []) for rank, text in enumerate(texts)]}

    sentence = Sentence(Marked("My file"), SentenceOptions(glossary=GLOSSARY, n_best=3))
    (best,) = translate_with_terms({7: sentence}, translate, "line").values()
    assert [each.text for each in best] == ["Mein Dokument", "Dokument da"]


@pytest.mark.parametrize("text", ["car", "Car", "<m0>Car</m0>:"])
def test_a_text_that_is_a_term_has_its_translation(text):
    options = SentenceOptions(glossary=Glossary([(1, "car", "Karre"), (2, "Car", "Karre")]))
    ((best,),) = load("everyday-en-de").translate_sentences([Sentence(marked(text), options)])
    assert (notation(best.marked), best.warnings) == (text.replace("Car", "Karre").replace("car", "Karre"), ())


@pytest.mark.parametrize(
    "others", [[], [(2, "here", "hier")], [(2, "five minutes", "fünf Minuten"), (3, "here", "hier")]]
)
def test_a_term_that_the_translation_has_anyway_changes_nothing(others):
    options = TranslateOptions(glossary=Glossary([(1, "station", "Haltestelle"), *others]))
    ((best,),) = load("everyday-en-de").n_best(["The station is five minutes from here."], options)
    assert (best.text, best.warnings) == ("Die Haltestelle ist fünf Minuten von hier.", ())


def test_with_the_model(caplog):
    """A term that fits is there, and one that does not leaves the translation as it is, which is said."""
    lines = ["My car is broken.", "Please open the file.", "He is my friend."]
    glossary = Glossary([(1, "car", "Wagen"), (2, "file", "Dokument Dokument Dokument")])
    translator = load("everyday-en-de")
    plain = translator.translate(lines)
    found = [best for best, *_ in translator.n_best(lines, TranslateOptions(glossary=glossary))]
    assert "Wagen" in found[0].text
    assert "terms" not in found[0].warnings
    assert (found[1].text, found[1].warnings) == (plain[1], ("terms",))
    assert found[2].text == plain[2]
    assert caplog.messages == ["line 2: translated without terms that do not fit: Dokument Dokument Dokument"]


@pytest.mark.parametrize(
    ("line", "term", "translation"),
    [
        ("Look at {flat} and my flat.", "flat", "Apartment"),
        ("The teacher gave the boy a book.", "book", "Heft"),
        ("{name}: I think that the film was very good.", "film", "Streifen"),
    ],
)
def test_a_term_in_the_place_of_another_word(line, term, translation):
    translator = load("everyday-en-de")
    options = TranslateOptions(glossary=Glossary([(1, term, translation)]))
    ((best,),) = translator.n_best([line], options)
    assert (best.text, best.warnings) == (translator.translate([line])[0], ("terms",))


def test_a_term_is_misplaced_if_its_words_are_aligned_with_others():
    glossary = Glossary([(1, "big house", "Villa am See"), (2, "dog", "Hund")])
    line = "my  big house"
    for links, expected in [
        ([], False),
        ([(0, 0)], False),
        ([(2, 3)], False),
        ([(2, 4), (1, 1)], False),
        ([(2, 4), (1, 0)], True),
        ([(0, 1), (1, 4)], True),
    ]:
        assert glossary.is_misplaced(line, "meine Villa am See und Haus", links) == expected
    assert glossary.is_misplaced(f"{line}, dog", "Villa am See oder Tier", [(1, 0), (3, 4)])
