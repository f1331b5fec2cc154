"""Models of several languages: a translator for each pair, in commands and in the server."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from relattn_mt import load
from relattn_mt.commands import main as cli
from relattn_mt.engine import decoder
from relattn_mt.formats.import_model import import_model
from relattn_mt.serve import routing, server
from relattn_mt.serve.app import make_app
from relattn_mt.serve.languages import Detector, served_pairs
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.routing import Router
from relattn_mt.support.errors import InputError
from starlette.testclient import TestClient

from tests.support import transformers_models as models
from tests.support.bundles import save_random_bundle
from tests.support.foreign_bundles import LINES, make_bundle

MODELS: dict[str, tuple[Any, dict[str, Any], tuple[str, str], tuple[str, str]]] = {
    "m2m_100": (models.m2m_100, {}, ("en", "de"), ("fr", "pt")),
    "nllb": (models.nllb, {}, ("eng_Latn", "deu_Latn"), ("deu_Latn", "fra_Latn")),
    "nllb, legacy": (models.nllb, {"legacy": True}, ("eng_Latn", "deu_Latn"), ("deu_Latn", "fra_Latn")),
    "marian": (models.marian, {"languages": ("deu", "fra")}, ("en", "deu"), ("en", "fra")),
}


def write_bundle(source: Path, out: Path, pair: tuple[str, str]) -> Path:
    import_model(source, out, tokenizer=None, tgt_tokenizer=None, src_lang=pair[0], tgt_lang=pair[1], sample=3)
    return out


@pytest.fixture(scope="module", params=MODELS)
def multilingual(request, tmp_path_factory) -> SimpleNamespace:
    """A model that was imported for one pair of languages, and again for another pair."""
    make, options, pair, other_pair = MODELS[request.param]
    path = tmp_path_factory.mktemp("model")
    make(path / "model", **options)
    bundles = [write_bundle(path / "model", path / str(i), each) for i, each in enumerate((pair, other_pair))]
    return SimpleNamespace(bundle=bundles[0], other=bundles[1], pair=pair, other_pair=other_pair)


def test_another_pair_is_the_model_imported_for_it(multilingual, monkeypatch, capsys, tmp_path):
    first, expected = load(multilingual.bundle), load(multilingual.other)
    source, target = multilingual.other_pair
    translators = [
        load(multilingual.bundle, src_lang=source, tgt_lang=target.upper()),
        first.with_languages(source, target),
        first.with_languages(source, target).with_languages(*multilingual.pair).with_languages(source, target),
    ]
    wanted = expected.n_best(LINES)
    assert wanted != first.n_best(LINES)
    scores = expected.log_probs([expected.tokenizer.encode(LINES[0])], [[5, 6]])
    for translator in translators:
        assert (translator.src_lang, translator.tgt_lang) == (source, target)
        assert translator.tokenizer.digest == expected.tokenizer.digest
        assert translator.n_best(LINES) == wanted
        assert translator.log_probs([translator.tokenizer.encode(LINES[0])], [[5, 6]]) == scores
    assert (first.src_lang, first.tgt_lang) == multilingual.pair
    (tmp_path / "src").write_text("\n".join(LINES))
    flags = [str(multilingual.bundle), "--src_lang", source, "--tgt_lang", target]
    file = str(tmp_path / "src")
    for command in (["evaluate", "--src", file, "--ref", file], ["score", "--src", file, "--tgt", file]):
        assert cli.main([command[0], *flags, *command[1:]]) == 0
        shown = capsys.readouterr().out
        assert cli.main([command[0], str(multilingual.other), *command[1:]]) == 0
        assert capsys.readouterr().out == shown


def test_a_pair_that_the_model_does_not_translate_is_refused(multilingual, tmp_path):
    for languages, message in (
        ({"tgt_lang": "xx"}, "unknown tgt_lang 'xx'"),
        ({"src_lang": "xx"}, "unknown src_lang 'xx'"),
    ):
        with pytest.raises(InputError, match=message):
            load(multilingual.bundle, **languages)
    with pytest.raises(InputError, match=r"languages must differ|unknown src_lang"):
        load(multilingual.bundle, src_lang=multilingual.pair[1])
    with pytest.raises(InputError, match="the model translates en to de, got en to fr"):
        load(save_random_bundle(tmp_path / "plain"), tgt_lang="fr")


def test_one_language_decides_the_pair_if_only_one_fits(tmp_path):
    both = (("en", "de"), ("de", "en"))
    make_bundle(tmp_path / "two", languages=("en", "de"), pairs=both)
    make_bundle(tmp_path / "three", languages=("en", "de"), pairs=(*both, ("fr", "en")))
    for given, pair in (({}, 0), ({"tgt_lang": "de"}, 0), ({"tgt_lang": "en"}, 1), ({"src_lang": "DE"}, 1)):
        translator = load(tmp_path / "two", **given)
        assert (translator.src_lang, translator.tgt_lang) == both[pair]
    with pytest.raises(InputError, match="languages must differ"):
        load(tmp_path / "three", tgt_lang="en")


def test_languages_that_are_not_served_are_not_detected():
    detector = Detector(["en", "de", "fr"])
    sentences = {
        "es": "El perro corre por la playa y el niño juega.",
        "it": "Il cane corre sulla spiaggia.",
        "ru": "Собака бежит по пляжу.",
        "en": "The dog runs on the beach.",
        "de": "Der Hund rennt am Strand.",
        "fr": "Le chien court sur la plage.",
    }
    for language, text in sentences.items():
        best = detector.rank(text)[0]
        if language in ("en", "de", "fr"):
            assert best["language"] == language
            assert best["confidence"] > 70
        else:
            assert best["confidence"] == 0
    words = {
        "en": ("Hello", "yes", "Good morning"),
        "de": ("Wasser", "vier", "Guten Tag!"),
        "fr": ("Bonjour", "eau", "s'il vous plaît"),
    }
    for language, texts in words.items():
        assert [detector.rank(text)[0]["language"] for text in texts] == [language] * len(texts)
    for word in ("casa", "perro", "ok"):  # of another language, or of several
        assert detector.rank(word)[0]["confidence"] < 50


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_all_pairs_share_one_copy_of_the_weights(multilingual, precision, monkeypatch):
    """In a server, weights are packed once, and its pairs have the same tensors and SentencePiece models."""
    packed, served = [], {}

    make = decoder.NativeDecoder.__init__

    def counted(self: decoder.NativeDecoder, *arguments: Any, **options: Any) -> None:
        packed.append(self)
        make(self, *arguments, **options)

    monkeypatch.setattr(decoder.NativeDecoder, "__init__", counted)
    monkeypatch.setattr(server, "serve", lambda *_, **__: None)
    monkeypatch.setattr(routing, "Router", lambda translators, *_, **__: served.update(translators))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # handlers belong to the server
    command = ["serve", str(multilingual.bundle), "--precision", precision, "--languages", "en", "de", "fr"]
    assert cli.main(command) == 0
    with TestClient(make_app(Router(served, Limits()))) as client:
        for source, target in served:
            body = {"q": LINES[0], "source": source, "target": target}
            assert client.post("/translate", json=body).status_code == 200
    assert len(served) > 1
    assert len(packed) == 1
    first, *others = served.values()
    for other in others:
        assert other.engine is first.engine
        assert other.characters is first.characters
        for name in ("models", "target_texts", "_ids"):
            assert getattr(other.tokenizer, name) is getattr(first.tokenizer, name)


def test_a_server_has_all_pairs(multilingual, monkeypatch):
    first = load(multilingual.bundle)
    wanted = ["en", "de", "fr"]
    pairs = served_pairs(first, wanted, "model")
    kept = {code for pair in pairs for code in pair}
    assert len(pairs) == (2 if len({source for source, _ in first.pairs}) == 1 else 6)
    assert kept == set(wanted)
    texts = {pair: translator.translate(LINES) for pair, translator in pairs.items()}
    assert len(set(map(tuple, texts.values()))) > 1
    with TestClient(make_app(Router(pairs, Limits()))) as client:
        listed = {each["code"]: each["targets"] for each in client.get("/languages").json()}
        assert {(source, target) for source, targets in listed.items() for target in targets} >= set(pairs)
        for (source, target), text in texts.items():
            answer = client.post("/translate", json={"q": LINES, "source": source, "target": target})
            assert answer.json() == {"translatedText": text}
    with pytest.raises(InputError, match="--languages must name at least two of"):
        served_pairs(first, ["xx"], "model")
    monkeypatch.setattr(routing, "_MOST_PAIRS", 1)
    router = Router(served_pairs(first, [], "model"), Limits())
    with TestClient(make_app(router)) as client:
        assert len(client.get("/languages").json()) == len({code for pair in first.pairs for code in pair})
        assert (
            router.queues == []
        )  # a pair gets its queues with its first request, and loses them when others need them
        for (source, target), text in texts.items():
            answer = client.post("/translate", json={"q": LINES, "source": source, "target": target})
            assert answer.json() == {"translatedText": text}
            assert len(router.queues) == 2


NORWEGIAN = [
    "Jeg vet ikke hva du mener med det.",
    "Hun kjøpte et nytt hus i fjor sommer.",
    "Kan du hjelpe meg med leksene mine?",
    "Vi skal på tur til fjellet i helgen.",
    "Det regner mye her om høsten.",
    "Eg veit ikkje kva du meiner med det.",
]


@pytest.mark.parametrize(
    ("codes", "texts", "expected"),
    [
        *((("en", code), NORWEGIAN, code) for code in ("nb", "nn", "no", "nb-NO", "nob")),
        (("nb", "nn", "en"), NORWEGIAN[:5], "nb"),
        (("nb", "nn", "en"), NORWEGIAN[5:], "nn"),
        (("en", "zt"), ["我不知道你是什么意思。", "她去年夏天買了一棟新房子。"], "zt"),
        (("en", "pb"), ["Eu não sei o que você quer dizer com isso."], "pb"),
        (("en", "iw"), ["אני לא יודע למה אתה מתכוון"], "iw"),
        (("en", "deu"), ["Ich weiß nicht, was du damit meinst."], "deu"),
    ],
)
def test_other_names_of_languages_are_detected(codes, texts, expected):
    detector = Detector(codes)
    for text in texts:
        best, *_ = detector.rank(text)
        assert (best["language"], best["confidence"] > 50) == (expected, True), text
