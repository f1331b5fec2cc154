"""Text to text, with models whose large random weights make them sure of some tokens."""

import logging
import os
import random
import threading
from collections.abc import Callable, Iterable
from itertools import cycle, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from relattn_mt.config import SCHEMES, ModelConfig, SearchConfig
from relattn_mt.data.batching import collate
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import Diverged, InputError
from relattn_mt.text.alignment import WordAlignment, align_words
from relattn_mt.text.marked import Mark, Marked
from relattn_mt.text.patterns import tag_pattern
from relattn_mt.text.place import place
from relattn_mt.text.strip import strip
from relattn_mt.tokens.text_files import stream_lines
from relattn_mt.tokens.tokenizer import SpecialTokens
from relattn_mt.training.validation import engine_of
from relattn_mt.translate import prepare, runner
from relattn_mt.translate import translator as module
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import CallOptions, SentenceOptions, TranslateOptions
from relattn_mt.translate.prepare import LONGEST_LINE, Sentence
from relattn_mt.translate.translation import Translation
from relattn_mt.translate.translator import Translator

from tests.support.engines import TextEngine, compiled

VOCAB = 41
NEAR_TIE = 1e-4  # rounding can change the order of scores that differ by less
TWO = TranslateOptions(n_best=2)


class WordTokenizer:
    """Tokenizer of lines whose words are the ids."""

    special = SpecialTokens()
    vocabularies = ([f"▁{i}" for i in range(VOCAB)],) * 2
    vocab_sizes = VOCAB, VOCAB
    target_texts = (*[b""] * 4, *(f" {i}".encode() for i in range(4, VOCAB)))

    def normalize(self, text: str) -> str:
        return text

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    encode_target = encode

    def decode(self, ids: list[int]) -> str:
        return " ".join(str(i) for i in ids)


@pytest.fixture(autouse=True, scope="module")
def numbers_are_words():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "needs_translation", lambda line: True)
        yield


def random_lines(count: int, *, shortest: int = 1, longest: int = 14, seed: int = 0) -> list[str]:
    source = random.Random(seed)
    sizes = [source.randint(shortest, longest) for _ in range(count)]
    return [" ".join(str(source.randrange(4, VOCAB)) for _ in range(size)) for size in sizes]


def make_model(seed: int = 1, *, scale: float = 2.0, ends: float = 0.4, **changes: object) -> Transformer:
    """Return a model that ends most translations by itself; with `ends` -5, none."""
    torch.manual_seed(seed)
    sizes = {"dim": 24, "heads": 3, "feed_forward_dim": 32, "encoder_layers": 1, "decoder_layers": 1}
    clip = {"clip": 3} if "clip" in SCHEMES[changes.get("positions", "relative")].options else {}
    model = Transformer(ModelConfig(**{**sizes, **clip, **changes}), VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
        model.decoder_norm.bias += ends * model.embedding[2]
    return model


def translator(model: Transformer, *, workers: int = 1, int8: bool = False, **search: object) -> Translator:
    search = {"max_length_ratio": 1.0, "max_length_extra": 6, **search}
    engine = compiled(model, int8=True) if int8 else engine_of(model)
    return Translator(engine, WordTokenizer(), SearchConfig(**search), workers=workers)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model()


def log_probs(model: Transformer, line: str, tokens: list[int]) -> list[float]:
    """Return the log-probability of each token and of the end, from the whole sequence at once."""
    src = torch.tensor([[*WordTokenizer().encode(line), 2]])
    with torch.no_grad():
        tgt_in = torch.tensor([[1, *tokens]])
        found = model(src, torch.tensor([src.shape[1]]), tgt_in)[0].double().log_softmax(-1)
    return found.gather(1, torch.tensor([*tokens, 2])[:, None])[:, 0].tolist()


def assert_scored(found: list[list[Translation]], lines: list[str], model: Transformer) -> None:
    """Assert that the scores of translations are those of their tokens, which are distinct, best first."""
    for line, hypotheses in zip(lines, found, strict=True):
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        for h in hypotheses:
            of_tokens = log_probs(model, line, h.tokens)
            assert h.score == pytest.approx(sum(of_tokens) / ((5 + len(of_tokens)) / 6) ** 0.6, rel=1e-4, abs=1e-4)
            assert h.mean_log_prob == pytest.approx(sum(of_tokens) / len(of_tokens), rel=1e-4, abs=1e-4)


def assert_same(found: list[list[Translation]], expected: list[list[Translation]], *, aligned: bool = False) -> None:
    """Assert the same best text and score, and alignment if `aligned`, except where the two best are a near-tie."""
    clear = [i for i, two in enumerate(expected) if len(two) < 2 or two[0].score - two[1].score > NEAR_TIE]
    assert len(clear) >= 0.9 * len(expected) == 0.9 * len(found)
    for mine, its in ((found[i][0], expected[i][0]) for i in clear):
        assert (mine.text, mine.alignment) == (its.text, its.alignment if aligned else [])
        assert mine.score == pytest.approx(its.score, rel=1e-5, abs=1e-5)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
@pytest.mark.parametrize(("positions", "beam_size"), list(zip(SCHEMES, cycle([3, 1]), strict=False)))
def test_every_scheme_translates_a_line_alone_as_in_a_batch(positions, beam_size):
    """With the scores of the whole sequence at once; in bfloat16, as exact as its digits."""
    model, lines = make_model(positions=positions), random_lines(5, seed=3)
    translate, options = translator(model, beam_size=beam_size), TranslateOptions(n_best=beam_size)
    together = translate.n_best(lines, options)
    assert len({h.text for h, *_ in together}) > 2
    assert_scored(together, lines, model)
    assert_same([translate.n_best([line], options)[0] for line in lines[:3]], together[:3])
    rounded = make_model(positions=positions, scale=1.0, ends=0.0).to(torch.bfloat16)
    found = translator(rounded, beam_size=beam_size).n_best(lines)
    rounded.double()
    for line, (best,) in zip(lines, found, strict=True):
        of_tokens = log_probs(rounded, line, best.tokens)
        mean = sum(of_tokens) / len(of_tokens)
        assert best.mean_log_prob == pytest.approx(mean, abs=2**-7 * abs(mean))


LINES = ["", *random_lines(16, seed=99), "  ", "7"]


@pytest.fixture(scope="module")
def expected(model) -> list[list[Translation]]:
    """Translations of LINES by a beam of 3, each translated alone, with alignments computed for it alone."""
    translate, found = translator(model, beam_size=3), []
    pieces = WordTokenizer.vocabularies[0]
    for line in LINES:
        (hypotheses,) = translate.n_best([line], TranslateOptions(n_best=2, align=True))
        found.append(hypotheses)
        for h in hypotheses if line.strip() else ():
            src = WordTokenizer().encode(line)
            batch = collate([src], [h.tokens])
            with torch.inference_mode():
                _, (weights,) = model(batch.src, batch.src_lengths, batch.tgt_in, model.config.alignment)
            sides = [pieces[i] for i in src], [pieces[i] for i in h.tokens]
            assert h.alignment == align_words(weights.numpy(), *sides, WordTokenizer.special).links
    assert len({two[0].text for two in found}) > 10
    assert sum(len(two[0].alignment) for two in found) > 60
    assert found[0] == found[-2] == [Translation("", 0.0, [])]
    return found


@settings(max_examples=6)
@given(data=st.data(), workers=st.sampled_from([1, 2, 4]), most=st.sampled_from([2, 16, 128]))
def test_a_line_has_the_same_translation_in_any_batch(model, expected, data, workers, most):
    order = data.draw(st.permutations(range(len(LINES))))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(LINES)), max_size=4)) | {0, len(LINES)})
    chunks = [[LINES[i] for i in order[start:end]] for start, end in pairwise(cuts)]
    options = TranslateOptions(n_best=2, align=data.draw(st.booleans()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "max_sentences", lambda *_: most)
        found = list(translator(model, workers=workers, beam_size=3).stream(iter(chunks), options))
    assert_same(found, [expected[i] for i in order], aligned=options.align)


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
@pytest.mark.parametrize(("positions", "int8"), [("relative", True), *zip(SCHEMES, cycle([False, True]))])
def test_compiled_a_line_has_exactly_the_same_translation_in_any_batch(positions, int8, monkeypatch):
    """Also alignments, scores of given translations, and translations with prefixes and draws."""
    exact, model = make_model(positions=positions), make_model(positions=positions)
    translate = translator(model, beam_size=3, int8=int8, workers=2)
    monkeypatch.setattr(runner, "max_sentences", lambda *_: 5)
    options = TranslateOptions(n_best=2, align=True)
    together = translate.n_best(LINES, options)
    assert together == [translate.n_best([line], options)[0] for line in LINES]
    unaligned = translator(exact, beam_size=3).n_best(LINES, TWO)
    assert sum(mine[0].text == its[0].text for mine, its in zip(together, unaligned, strict=True)) >= 10
    pieces = [WordTokenizer().encode(line) for line in LINES]
    scores = translate.log_probs(pieces, [best.tokens for best, *_ in together])
    for (best, *_), line, of_tokens in zip(together, LINES, scores, strict=True):
        if line.strip():
            assert sum(of_tokens) / len(of_tokens) == pytest.approx(best.mean_log_prob, abs=0.02)
    found = translate.translate(LINES[1:9], prefixes=["7 8"] * 8)
    assert all(text.startswith("7 8") for text in found)


@pytest.mark.parametrize(("workers", "lines"), [(2, 37), (3, 2), (3, 1), (3, 0)])
def test_each_worker_searches_a_part_of_the_lines(workers, lines):
    seen = []

    class Watched(TextEngine):
        def search(self, requests, rules):
            seen.append((threading.current_thread(), len(requests)))
            if rules.n_best == 2:
                raise InputError("refused")
            return super().search(requests, rules)

    tokenizer = WordTokenizer()
    translate = Translator(Watched(tokenizer, lambda text: "5"), tokenizer, SearchConfig(), workers=workers)
    assert translate.translate(random_lines(lines)) == ["5"] * lines
    if lines > 1:
        assert max(size for _, size in seen) <= -(-lines // workers)
        assert threading.current_thread() not in {thread for thread, _ in seen}
        with pytest.raises(InputError, match="refused"):
            translate.translate(random_lines(lines), TWO)


def test_blank_lines_do_not_need_the_model(model, monkeypatch):
    monkeypatch.setattr(model, "encode", None)
    assert translator(model).translate(["", "  ", "\t", "\u200b\ufeff \u00ad"]) == [""] * 4
    assert translator(model).translate([]) == []


SIX, MONSTER = "4 5 6 7 8 9", "5 " * (LONGEST_LINE // 2) + "7"
TERMS = TranslateOptions(glossary=Glossary([(1, "4", "5 6 7 8 9")]))


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (lambda t: t.translate(["4", "", SIX, f"{SIX} 10"]), ["line 3", "6", "at most 5"]),
        (lambda t: list(t.stream([["4"] * 4, ["4"] * 4, ["4", SIX]])), ["line 10", "6 pieces"]),
        (lambda t: t.translate(["4", "\udcff"]), ["line 2", "UTF-8"]),
        (lambda t: t.n_best(["5"], TranslateOptions(n_best=5)), ["n_best", "beam size 4", "got 5"]),
        (lambda t: TranslateOptions(n_best=0), ["n_best", "got 0"]),
        *((lambda t, x=x: TranslateOptions(long_lines=x), ["long_lines must", "got"]) for x in ("drop", None, "")),
        (lambda t: t.translate(["4", "5"], prefixes=["4"]), ["1 prefixes for 2 lines"]),
        (lambda t: t.translate(["4"], prefixes=["4", "4", ""]), ["3 prefixes for 1 lines"]),
        (lambda t: t.translate(["4", " "], prefixes=["", "4"]), ["line 2", "blank", "prefix"]),
        (lambda t: t.translate(["4"], prefixes=[SIX]), ["line 1", "6 pieces", "at most 5"]),
        (lambda t: t.translate(["4"], prefixes=[MONSTER]), ["prefix 1", "16,385"]),
        (lambda t: t.translate(["4", "4 4"], TERMS), ["terms of line 2", "10 pieces", "at most 5"]),
        (lambda t: TranslateOptions(keep_tags=True, align=True), ["keep_tags", "align"]),
        (lambda t: t.translate(["4"], TranslateOptions(keep_tags=True), prefixes=["6"]), ["keep_tags", "prefixes"]),
        (lambda t: list(t.score([("4", "4"), (SIX, "4")])), ["source line 2", "6", "at most 5"]),
        (lambda t: list(t.score([("4", SIX)])), ["target line 1", "6", "at most 5"]),
    ],
)
def test_requests_that_are_refused(call: Callable[[Translator], object], facts):
    translate = translator(make_model(positions="learned", max_positions=6))
    with pytest.raises(InputError) as refused:
        call(translate)
    assert all(fact in str(refused.value) for fact in facts), refused.value
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("src", "tgt", "facts"),
    [
        ([[4]], [[5, VOCAB]], "tgt_ids .* got 41"),
        ([[4]], [[5], [99999]], "same length, got 1 and 2"),
        ([[4], [5, -1]], [[5], []], "src_ids .* got -1"),
        ([[99999]], [[5]], "src_ids .* got 99999"),
        ([], [[5]], "same length, got 0 and 1"),
    ],
)
def test_ids_that_are_refused(model, src, tgt, facts):
    for engine in (compiled(model), engine_of(model)):
        translate = Translator(engine, WordTokenizer(), SearchConfig())
        for method in (translate.log_probs, translate.align):
            with pytest.raises(InputError, match=facts):
                method(src, tgt)


def test_nan_is_reported_with_its_line():
    model = make_model(shared_embeddings="none")
    with torch.no_grad():
        model.src_embedding[6] = torch.tensor([3e38, -3e38]).repeat(model.config.dim // 2)
    with pytest.raises(Diverged, match=r"line 2: .* NaN"):
        translator(model).n_best(["4 5", "5 6", "7"])


def test_one_string_is_not_a_list_of_lines(model):
    translate = translator(model).translate
    for call in (lambda: translate("a line"), lambda: translate(["a line"], prefixes="a")):
        with pytest.raises(TypeError, match="must be a list of strings, got the string 'a"):
            call()


def test_longest_requests_that_a_model_can_hold(caplog):
    translate = translator(make_model(positions="learned", max_positions=6, ends=-5), max_length_extra=50)
    assert translate.translate(["4"], TERMS) == ["5 6 7 8 9"]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert len(translate.translate(["", "4 5 6 7 8"])[1].split()) == 5
    (message,) = caplog.messages
    assert message.startswith("line 2: its translation was cut at 6 pieces")
    stream = translate.stream([["4"] * 4, [SIX]])
    assert len([next(stream) for _ in range(4)]) == 4  # earlier chunks come before the error


def test_translations_begin_with_their_prefixes(model):
    """They are the best that do, so a translation that begins with its own first words stays as it is."""
    translate, lines = translator(model), random_lines(12, shortest=3, seed=11)
    best = translate.translate(lines)
    parts = [" ".join(text.split()[: i % 4]) for i, text in enumerate(best)]
    assert translate.translate(lines, prefixes=parts) == best
    others = ["39 38"] * 11 + [""]
    found = translate.n_best(lines, TranslateOptions(n_best=3), prefixes=others)
    assert all(h.text.startswith(prefix) for three, prefix in zip(found, others, strict=True) for h in three)
    assert_scored(found, lines, model)
    streamed = list(translate.stream([lines[:7], lines[7:8], lines[8:]], prefixes=iter(others)))
    assert [h.text for (h,) in streamed] == [h.text for h, *_ in found]
    long = [" ".join(["7"] * 200), " ".join(["8"] * 200)]  # leaves no room for other tokens
    assert translate.translate(["5 6", "7"], prefixes=long) == long


def test_translations_contain_the_terms_of_a_glossary(model):
    """Lines without terms are translated as without a glossary."""
    translate, lines = translator(model), [*random_lines(9, longest=6, seed=14), "5 6 7", "6 7 5 6 7", "8"]
    glossary = Glossary([(1, "6 7", "31 32"), (2, "8", "33"), (3, "9 9", " ".join(["7"] * 30))])
    found = translate.n_best(lines, TranslateOptions(n_best=2, glossary=glossary))
    for line, hypotheses, plain in zip(lines, found, translate.n_best(lines, TWO), strict=True):
        terms = list(pairwise(line.split())).count(("6", "7")), line.split().count("8")
        for h in hypotheses:
            assert list(pairwise(h.text.split())).count(("31", "32")) >= terms[0]
            assert h.text.split().count("33") >= terms[1]
        if not any(terms):
            assert [h.text for h in hypotheses] == [h.text for h in plain]
    options = TranslateOptions(glossary=glossary)
    (text,) = translate.translate(["6 7 8"], options, prefixes=["33 9"])
    assert text.startswith("33 9 ")
    assert "31 32" in text
    assert translate.translate(["9 9"], options) == [" ".join(["7"] * 30)]  # longer than the search's limit


def test_an_endless_stream_is_translated_chunk_by_chunk(model, capfd):
    read = 0

    def endless() -> Iterable[list[str]]:
        nonlocal read
        while read := read + 16:
            yield ["" if i % 3 == 0 else f"{i % 20 + 4} 9" for i in range(read - 15, read + 1)]

    stream = translator(model, beam_size=1).stream(endless())
    assert len([next(stream) for _ in range(20)]) == 20
    assert read == 32
    assert capfd.readouterr() == ("", "")
    translator(model).translate(["5 6", "", "7"], progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/3" in err


def test_a_line_of_standard_input_is_available_before_the_next_is_written(tmp_path):
    read, write = os.pipe()
    chunks = stream_lines(read)
    for line in ("first", "second"):
        os.write(write, f"{line}\nunfin".encode())
        assert next(chunks) == [line]
        os.write(write, b"ished\n")
        assert next(chunks) == ["unfinished"]
    os.close(write)
    assert list(chunks) == []
    with pytest.raises(InputError, match="standard input: cannot be read"):
        next(stream_lines(os.open(tmp_path, os.O_RDONLY)))


def test_pairs_are_scored_in_order(model, monkeypatch):
    pairs = list(zip(random_lines(20, seed=7), random_lines(20, seed=8), strict=True))
    monkeypatch.setattr(module, "PAIRS", 7)
    for (line, target), found in zip(pairs, translator(model).score(pairs), strict=True):
        tokens = WordTokenizer().encode(target)
        assert [piece for piece, _ in found] == [*tokens, 2]
        assert [log_prob for _, log_prob in found] == pytest.approx(log_probs(model, line, tokens), abs=1e-4)


def test_tags_are_restored_by_the_alignment(model, caplog, monkeypatch):
    """The rest of a translation is the same as without tags."""
    translate, lines = translator(model), random_lines(12, shortest=4, longest=7, seed=15)
    with_tags = [" ".join([*line.split()[:2], "%s", *line.split()[2:]]) for line in lines]
    plain = translate.n_best(lines, TranslateOptions(n_best=2, align=True))
    found = translate.n_best([*with_tags, "{x}", "<b>5</b> 6"], TranslateOptions(n_best=2, keep_tags=True))
    for line, before, after in zip(with_tags, plain, found, strict=False):
        source = strip(Marked(line), tag_pattern())
        src_ids = [translate.tokenizer.encode(source.line)] * len(before)
        alignments = translate.runner.align_words(src_ids, [h.tokens for h in before])
        assert [each.links for each in alignments] == [h.alignment for h in before]
        expected = [place(source, h.text, *each)[0].text for h, each in zip(before, alignments, strict=True)]
        assert [h.text for h in after] == expected
        assert [(h.score, h.tokens) for h in after] == [(pytest.approx(h.score, abs=1e-5), h.tokens) for h in before]
        assert [h.alignment for h in after] == [[], []]
    assert [h.text for h in found[12]] == ["{x}"]
    assert found[13][0].text.count("<b>") == 1
    options = TranslateOptions(keep_tags=True)
    assert translate.translate(["5"], options, prefixes=[""]) == translate.translate(["5"])
    nothing = WordAlignment([], [])
    monkeypatch.setattr(translate.runner, "align_words", lambda src_ids, _: [nothing] * len(src_ids))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert translate.translate(["", "5 {x} 6"], options)[1].count("{x}") == 1
    (message,) = caplog.messages
    assert message.startswith("line 2: the place of {x}")


def test_options_of_a_call_are_those_of_all_its_sentences(model):
    """Whatever the sentences have; a glossary of one of them does not work with a call that samples."""
    translate, line = translator(model, beam_size=2), "4 5 6"
    wide = SearchConfig(beam_size=5)
    sentences = [Sentence(Marked(line), SentenceOptions(n_best=count)) for count in (4, 1)]
    ranked = translate.translate_sentences(sentences, CallOptions(search=wide))
    assert [len(each) for each in ranked] == [4, 1]
    expected = translate.n_best([line], TranslateOptions(n_best=4, search=wide))[0]
    assert [each.text for each in ranked[0]] == [each.text for each in expected]
    with pytest.raises(InputError, match="n_best must be at most the beam size 2, got 4"):
        translate.translate_sentences(sentences)


def test_sentences_with_different_options_share_a_batch(monkeypatch, model):
    """Each has the translations that it has alone."""
    translate = translator(model, beam_size=3)
    texts = [Marked("4 5 6"), Marked("5 6", (Mark(2, "open", 0), Mark(3, "close", 0)))]
    choices = [
        TWO,
        TranslateOptions(keep_literals=False),
        TranslateOptions(align=True),
        TranslateOptions(keep_tags=True),
    ]
    sentences = [Sentence(text, options) for text in texts for options in choices]
    alone = [translate.translate_sentences([sentence])[0] for sentence in sentences]
    calls, search = [], translate.engine.search
    monkeypatch.setattr(translate.engine, "search", lambda *given: calls.append(given) or search(*given))
    together = translate.translate_sentences(sentences)
    assert [[(h.text, h.marks, h.alignment) for h in ranked] for ranked in together] == [
        [(h.text, h.marks, h.alignment) for h in ranked] for ranked in alone
    ]
    assert [len(ranked) for ranked in together] == [2, 1, 1, 1] * 2
    assert len(calls) == 1
    assert sorted(mark.kind for mark in together[4][0].marks) == ["close", "open"]
