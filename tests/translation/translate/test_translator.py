"""Text to text, with a small model trained for a few seconds to spell numbers backwards."""

from __future__ import annotations

import logging
import os
import random
import threading
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from relattn import AttentionCache
from relattn.translation.config import OPTIONS, ModelConfig, Positions, SearchConfig
from relattn.translation.data.text_files import stream_lines
from relattn.translation.data.tokenizer import SpecialTokens
from relattn.translation.errors import InputError
from relattn.translation.model.ensemble import Ensemble
from relattn.translation.model.positions.schemes import SCHEMES
from relattn.translation.model.transformer import Transformer
from relattn.translation.search.types import SamplingOptions
from relattn.translation.translate import pipeline
from relattn.translation.translate.glossary import Glossary
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import LONGEST_LINE, Translation
from relattn.translation.translate.torch_translator import TorchTranslator

VOCAB = 40
NEAR_TIE = 1e-4  # a difference of scores that rounding could turn round


class WordTokenizer:
    """Words are the ids themselves."""

    special = SpecialTokens()
    vocabularies = ([f"▁{i}" for i in range(VOCAB)],) * 2

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    encode_target = encode

    def decode(self, ids: list[int]) -> str:
        return " ".join(str(i) for i in ids)


def random_lines(count: int, *, shortest: int = 1, longest: int = 14, seed: int = 0) -> list[str]:
    source = random.Random(seed)
    return [
        " ".join(str(source.randrange(4, VOCAB)) for _ in range(source.randint(shortest, longest)))
        for _ in range(count)
    ]


def small_model(positions: Positions, **changes: object) -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig(
        dim=48,
        heads=3,
        feed_forward_dim=96,
        encoder_layers=1,
        decoder_layers=1,
        dropout=0.0,
        attention_dropout=0.0,
    )
    options = {"clip": 3} if "clip" in OPTIONS.get(positions, {}) else {}
    return Transformer(config.with_positions(positions, **options, **changes), VOCAB)


def translator(model: Transformer | Ensemble, *, workers: int = 1, **search: object) -> TorchTranslator:
    return TorchTranslator(model, WordTokenizer(), SearchConfig(**search), workers=workers)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trained() -> Transformer:
    """Half-way to reversing its input: sure of much, wrong at times, and it ends by itself."""
    model = small_model("relative")
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(200):
        src = [torch.tensor([*WordTokenizer().encode(line), 2]) for line in random_lines(48, longest=9, seed=step)]
        tgt = [torch.cat([torch.tensor([1]), row[:-1].flip(0), torch.tensor([2])]) for row in src]
        tgt_rows = pad_sequence(tgt, batch_first=True)
        logits = model(pad_sequence(src, batch_first=True), torch.tensor([len(row) for row in src]), tgt_rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tgt_rows[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def assert_same(found: list[list[Translation]], expected: list[list[Translation]]) -> None:
    """The same best text and score, but for lines whose two best are a near-tie in score; of these there are few."""
    clear = [len(two) < 2 or two[0].score - two[1].score > NEAR_TIE for two in expected]
    assert sum(clear) >= 0.99 * len(clear)
    found = [two for two, is_clear in zip(found, clear, strict=True) if is_clear]
    expected = [two for two, is_clear in zip(expected, clear, strict=True) if is_clear]
    assert [two[0].text for two in found] == [two[0].text for two in expected]
    torch.testing.assert_close(
        torch.tensor([two[0].score for two in found]),
        torch.tensor([two[0].score for two in expected]),
        rtol=1e-5,
        atol=1e-5,
    )


def in_parts(translate: TorchTranslator, lines: list[str], order: list[int], size: int) -> list[list[Translation]]:
    """The two best of each line, translated in another order and so many at a time."""
    found = {}
    for at in range(0, len(order), size):
        part = order[at : at + size]
        found.update(zip(part, translate.n_best([lines[i] for i in part], TranslateOptions(n_best=2)), strict=True))
    return [found[i] for i in range(len(lines))]


@pytest.mark.whole
def test_1000_sentences_have_the_same_translations_however_asked(trained):
    lines = random_lines(1000, seed=99)
    translate = translator(trained, beam_size=4, max_length_extra=6)
    expected = translate.n_best(lines, TranslateOptions(n_best=2))
    assert len({two[0].text for two in expected}) > 900  # the model says something
    shuffled = random.Random(5).sample(range(1000), 1000)
    assert_same(in_parts(translate, lines, shuffled, 64), expected)
    assert_same(in_parts(translate, lines, list(range(999, -1, -1)), 1000), expected)
    assert_same(in_parts(translate, lines, list(range(1000)), 1), expected)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
def test_every_scheme_translates_alike_alone_and_in_a_batch(positions, beam_size):
    translate = translator(small_model(positions), beam_size=beam_size, max_length_extra=3)
    lines = random_lines(30, seed=3)
    together = translate.n_best(lines)
    alone = [translate.n_best([line])[0] for line in lines]
    assert [one[0].text for one in alone] == [one[0].text for one in together]
    assert [one[0].score for one in alone] == pytest.approx([one[0].score for one in together], rel=1e-5, abs=1e-5)


@pytest.mark.sampled(8)
@torch.no_grad()
def test_scores_are_those_of_the_whole_sequence_at_once(trained):
    """Step by step with a reordered cache, or by teacher forcing: the same log-probability."""
    lines = random_lines(20, seed=4)
    for line, hypotheses in zip(lines, translator(trained).n_best(lines, TranslateOptions(n_best=4)), strict=True):
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        assert len({tuple(h.tokens) for h in hypotheses}) == 4
        src = torch.tensor([[*WordTokenizer().encode(line), 2]])
        for h in hypotheses:
            log_probs = trained(src, torch.tensor([src.shape[1]]), torch.tensor([[1, *h.tokens]])).log_softmax(-1)
            total = log_probs[0].gather(1, torch.tensor([*h.tokens, 2])[:, None]).sum().item()
            assert h.score == pytest.approx(total / ((5 + len(h.tokens) + 1) / 6) ** 0.6, rel=1e-5, abs=1e-5)


def test_it_does_what_it_was_trained_for(trained):
    lines = random_lines(100, shortest=2, longest=6, seed=6)
    right = sum(
        text == " ".join(reversed(line.split()))
        for line, text in zip(lines, translator(trained).translate(lines), strict=True)
    )
    assert right > 50


def test_order_is_kept_and_blank_lines_stay_blank_without_the_model(trained, monkeypatch):
    lines = ["", "7 8 9", "   ", "5", "\t", "11 12", ""]
    translate = translator(trained)
    texts = translate.translate(lines)
    assert [i for i, text in enumerate(texts) if text == ""] == [0, 2, 4, 6]
    assert [texts[i] for i in (1, 3, 5)] == [translate.translate([lines[i]])[0] for i in (1, 3, 5)]
    monkeypatch.setattr(trained, "encode", None)
    assert translate.translate(["", "  "]) == ["", ""]
    assert translate.n_best([""], TranslateOptions(n_best=2)) == [[Translation("", 0.0, [])]]
    assert translate.translate([]) == []


def test_a_translation_has_a_limit_of_its_own():
    model = small_model("relative")  # untrained: never ends by itself
    lines = ["5 6", "5 6 7 8 9 10"]
    translate = translator(model, beam_size=2, max_length_ratio=1.5, max_length_extra=1)
    assert [len(h[0].tokens) + 1 for h in translate.n_best(lines)] == [4, 10]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_has_room_for_its_longest_translation_from_the_start(monkeypatch, beam_size):
    lines = random_lines(5, seed=8)
    translate = translator(small_model("relative"), beam_size=beam_size)
    expected = translate.translate(lines)
    monkeypatch.setattr(AttentionCache, "_copy", None)  # what a cache does where there is no room
    assert translate.translate(lines) == expected


def test_a_line_the_model_cannot_read_whole_is_refused_by_number():
    translate = translator(small_model("learned", max_positions=6))
    assert len(translate.translate(["4 5 6 7 8"])) == 1  # and its end: six in all
    with pytest.raises(InputError, match=r"^line 3 has 6 pieces, but this model reads at most 5$"):
        translate.translate(["4", "", "4 5 6 7 8 9", "4 5 6 7 8 9 10"])


def test_a_stream_counts_lines_from_its_beginning():
    chunks = [["4"] * 4, ["4"] * 4, ["4", "4 5 6 7 8 9"]]
    stream = translator(small_model("learned", max_positions=6)).stream(chunks)
    assert len([next(stream) for _ in range(8)]) == 8
    with pytest.raises(InputError, match=r"^line 10 has 6 pieces"):
        next(stream)


def test_a_translation_the_model_cannot_hold_is_reported(caplog):
    translate = translator(small_model("learned", max_positions=8), beam_size=1)
    with caplog.at_level(logging.WARNING):
        translate.translate(["", "5 6 7"])
    assert caplog.messages == ["line 2: its translation was cut at 8 pieces, the most this model can hold"]


@pytest.mark.whole
@pytest.mark.parametrize(("workers", "lines"), [(2, 301), (3, 50), (3, 2), (3, 1), (3, 0)])
def test_workers_change_nothing(trained, monkeypatch, workers, lines):
    """Each searches with one of PyTorch's threads, and what was set is set again."""
    monkeypatch.setattr(pipeline, "MAX_SENTENCES", 16)
    seen = []
    asked = random_lines(lines)
    alone = translator(trained, beam_size=3).n_best(asked, TranslateOptions(n_best=2))

    class Watched(TorchTranslator):
        def search_batch(self, requests, search, options):
            seen.append((threading.current_thread(), torch.get_num_threads(), len(requests)))
            return super().search_batch(requests, search, options)

    before = torch.get_num_threads()
    translate = Watched(trained, WordTokenizer(), SearchConfig(beam_size=3), workers=workers)
    try:
        torch.set_num_threads(2)
        assert_same(translate.n_best(asked, TranslateOptions(n_best=2)), alone)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    if lines > 1:
        assert 1 < len({thread for thread, _, _ in seen}) <= workers
        assert {threads for _, threads, _ in seen} == {1}
        assert max(size for _, _, size in seen) <= -(-lines // workers)
    assert sum(size for _, _, size in seen) == lines


def test_workers_align_each_its_own_lines(trained, monkeypatch):
    """While others search and align with the same model."""
    monkeypatch.setattr(pipeline, "MAX_SENTENCES", 5)
    asked = random_lines(60, longest=9)
    alone, together = (
        translator(trained, beam_size=2, workers=workers).n_best(asked, TranslateOptions(align=True))
        for workers in (1, 4)
    )
    same = [(a, b) for (a,), (b,) in zip(alone, together, strict=True) if a.text == b.text]
    assert len(same) >= 59
    assert all(a.alignment == b.alignment for a, b in same)


def test_an_error_in_a_worker_is_raised_and_the_number_of_threads_restored(trained):
    class Refusing(TorchTranslator):
        def search_batch(self, requests, search, options):
            raise InputError("no")

    threads = torch.get_num_threads()
    with pytest.raises(InputError, match=r"^no$"):
        Refusing(trained, WordTokenizer(), SearchConfig(), workers=2).translate(["4", "5 6", "7"])
    assert torch.get_num_threads() == threads


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:positions. none")
@pytest.mark.parametrize("positions", SCHEMES)
def test_in_bfloat16_scores_are_as_near_as_its_digits(positions):
    """Of what a search finds, by the same weights in float64."""
    rounded = small_model(positions).to(torch.bfloat16)
    found = translator(rounded, beam_size=2).n_best(random_lines(20))
    exact = translator(rounded.double())
    pairs = [(line, best.text) for line, (best,) in zip(random_lines(20), found, strict=True)]
    for (best,), each in zip(found, exact.score(pairs), strict=True):
        mean = sum(log_prob for _, log_prob in each) / len(each)
        assert best.mean_log_prob == pytest.approx(mean, abs=2**-7 * abs(mean))


@pytest.mark.parametrize("n", [0, 5])
def test_n_best_is_at_most_the_beam(trained, n):
    with pytest.raises(InputError, match=f"n_best must be at .*, got {n}"):
        translator(trained).n_best(["5"], TranslateOptions(n_best=n))


def test_translations_begin_with_their_prefixes(trained):
    """And are the best that do: so one that begins with a part of itself stays as it is."""
    translate, lines = translator(trained), random_lines(30, shortest=3, seed=11)
    best = translate.translate(lines)
    parts = [" ".join(text.split()[: i % 4]) for i, text in enumerate(best)]
    assert translate.translate(lines, prefixes=parts) == best
    others = ["39 38"] * 29 + [""]
    found = translate.n_best(lines, TranslateOptions(n_best=3), prefixes=others)
    assert all(h.text.startswith(prefix) for of_line, prefix in zip(found, others, strict=True) for h in of_line)
    assert found[-1][0].text == best[-1]
    scored = [next(translate.score([(line, h.text)])) for line, (h, *_) in zip(lines, found, strict=True)]
    for log_probs, (h, *_) in zip(scored, found, strict=True):
        total = sum(log_prob for _, log_prob in log_probs)
        assert h.score == pytest.approx(total / ((5 + len(log_probs)) / 6) ** 0.6, abs=1e-4)
    chunks = [lines[:7], lines[7:8], lines[8:]]
    streamed = [h.text for (h,) in translate.stream(chunks, prefixes=iter(others))]
    assert streamed == [h.text for h, *_ in found]


@pytest.mark.parametrize("options", [TranslateOptions(), TranslateOptions(sampling=SamplingOptions())])
def test_a_long_prefix_is_read_in_one_pass(trained, monkeypatch, options):
    passes, step = [], trained.step
    monkeypatch.setattr(trained, "step", lambda *arguments: passes.append(1) or step(*arguments))
    prefixes = [" ".join(["7"] * 200), " ".join(["8"] * 200)]
    translate = translator(trained, max_length_ratio=1, max_length_extra=2)
    assert translate.translate(["5 6", "7"], options, prefixes=prefixes) == prefixes  # no room for more
    assert len(passes) == 1


def test_a_prefix_may_be_longer_than_a_translation_would(trained):
    prefix = " ".join(["7"] * 30)
    (found,) = translator(trained, max_length_ratio=1, max_length_extra=2).translate(["5 6"], prefixes=[prefix])
    assert found == prefix


@pytest.mark.parametrize(
    ("lines", "prefixes", "message"),
    [
        (["4", "5"], ["4"], "there are 1 prefixes for 2 lines"),
        (["4"], ["4", "4", ""], "there are 3 prefixes for 1 lines"),
        (["4", " "], ["", "4"], "line 2 is blank, so its prefix must be blank too"),
        (["4"], ["4 5 6 7 8 9"], "prefix and terms of line 1 have 6 pieces, but this model holds at most 5"),
        (["4"], ["4 " * 10_000], "prefix 1 has 20,000 characters; at most 16,384 are read"),
    ],
)
def test_prefixes_that_will_not_do(lines, prefixes, message):
    translate = translator(small_model("learned", max_positions=6))
    with pytest.raises(InputError, match=f"^{message}$"):
        translate.translate(lines, prefixes=prefixes)
    stream = translate.stream([[line] for line in lines], prefixes=prefixes)
    with pytest.raises(InputError, match=f"^{message}$"):
        list(stream)


def test_a_glossary_is_kept_to(trained):
    """Lines with terms and without in one batch; those without are what they are without a glossary."""
    translate, lines = translator(trained), [*random_lines(20, longest=6, seed=14), "5 6 7", "6 7 5 6 7", "8"]
    plain = translate.n_best(lines, TranslateOptions(n_best=2))
    glossary = Glossary([(1, "6 7", "31 32"), (2, "8", "33")])
    found = translate.n_best(lines, TranslateOptions(n_best=2, glossary=glossary))
    for line, hypotheses, before in zip(lines, found, plain, strict=True):
        terms = list(pairwise(line.split())).count(("6", "7")), line.split().count("8")
        for h in hypotheses:
            assert list(pairwise(h.text.split())).count(("31", "32")) >= terms[0]
            assert h.text.split().count("33") >= terms[1]
        if not any(terms):
            assert [h.text for h in hypotheses] == [h.text for h in before]
    assert sum("31 32" in of_line[0].text for of_line in found) >= 2
    (both,) = translate.n_best(["6 7 8"], TranslateOptions(glossary=glossary), prefixes=["33 9"])
    assert both[0].text.startswith("33 9 ")
    assert "31 32" in both[0].text
    with pytest.raises(InputError, match="glossary"):
        TranslateOptions(glossary=glossary, sampling=SamplingOptions())


def test_terms_may_be_longer_than_a_translation_would(trained):
    translate = translator(trained, max_length_ratio=1, max_length_extra=2)
    glossary = Glossary([(1, "5", " ".join(["7"] * 30))])
    assert translate.translate(["5 6"], TranslateOptions(glossary=glossary)) == [" ".join(["7"] * 30)]


def test_terms_that_a_model_cannot_hold():
    translate = translator(small_model("learned", max_positions=6))
    options = TranslateOptions(glossary=Glossary([(1, "4", "5 6 7 8 9")]))
    assert translate.translate(["4"], options) == ["5 6 7 8 9"]
    with pytest.raises(
        InputError, match=r"^prefix and terms of line 2 have 10 pieces, but this model holds at most 5$"
    ):
        translate.translate(["4", "4 4"], options)
    with pytest.raises(InputError, match=r"^prefix and terms of line 1 have 6 pieces, but this model holds at most 5$"):
        translate.translate(["4"], options, prefixes=["7"])


def test_draws_depend_on_the_line_and_the_seed_and_on_nothing_else(trained):
    translate, lines = translator(trained), ["5 6 7 8", "9 10", "5 6 7 8", "", "11 12 13"]

    def sampling(seed: int, n: int) -> TranslateOptions:
        return TranslateOptions(n_best=n, sampling=SamplingOptions(temperature=1.5, seed=seed))

    def drawn(seed: int, n: int) -> list[list[Translation]]:
        return translate.n_best(lines, sampling(seed, n))

    found = drawn(3, 6)
    assert [len(of_line) for of_line in found] == [6, 6, 6, 1, 6]
    assert [h.text for h in found[0]] != [h.text for h in found[2]]
    texts = [[h.text for h in of_line] for of_line in found]
    assert [[h.text for h in of_line] for of_line in drawn(3, 2)] == [of_line[:2] for of_line in texts]
    assert [[h.text for h in of_line] for of_line in drawn(4, 6)] != texts
    chunks = [[line] for line in lines]
    assert [[h.text for h in of_line] for of_line in translate.stream(chunks, sampling(3, 6))] == texts
    begun = translate.n_best(lines, sampling(3, 2), prefixes=["", "7", "8 9", "", "10"])
    assert all(
        h.text.split()[: len(p)] == p
        for p, of_line in zip(([], ["7"], ["8", "9"], [], ["10"]), begun, strict=True)
        for h in of_line
    )


def test_an_endless_stream_is_translated_a_chunk_at_a_time(trained):
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 16
            yield ["" if i % 3 == 0 else f"{i % 20 + 4} 9" for i in range(asked - 15, asked + 1)]

    translate = translator(trained, beam_size=1)
    stream = translate.stream(endless())
    texts = [next(stream)[0].text for _ in range(40)]
    assert asked == 48
    expected = translate.translate(["" if i % 3 == 0 else f"{i % 20 + 4} 9" for i in range(1, 41)])
    assert texts == expected


def test_n_best_of_lines_as_they_arrive(trained):
    translate = translator(trained)
    lines = ["5 6 7", "", "8 9", "10"]
    arrived = list(translate.stream(stream_lines(written("\n".join(lines).encode())), TranslateOptions(n_best=3)))
    whole = translate.n_best(lines, TranslateOptions(n_best=3))
    tokens = [[best.tokens for best in found] for found in whole]
    assert [[best.tokens for best in found] for found in arrived] == tokens
    scores = [best.score for found in arrived for best in found]
    assert scores == pytest.approx([best.score for found in whole for best in found], abs=1e-5)  # what is promised


def test_progress_goes_to_standard_error_and_only_when_asked_for(trained, capfd):
    translator(trained).translate(["5 6", "", "7"])
    assert capfd.readouterr() == ("", "")
    translator(trained).translate(["5 6", "", "7"], progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "3/3" in err


def test_the_model_is_put_into_evaluation_mode():
    assert not translator(small_model("relative").train()).model.training


def written(data: bytes) -> int:
    """A descriptor to read `data` from."""
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as file:
            file.write(data)

    threading.Thread(target=feed, daemon=True).start()
    return read


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\n\nb\r\n", ["a", "", "b"]),
        ("a\u2028b\x85\u00fc\nlast".encode(), ["a\u2028b\x85\u00fc", "last"]),
        (b"\n\n", ["", ""]),
        (b"\xef\xbb\xbfmark\n\xef\xbb\xbfno mark\n", ["mark", "\ufeffno mark"]),
        ("ü".encode() * 100_000 + b"\n" + b"x", ["ü" * 100_000, "x"]),
    ],
)
def test_lines_are_read_as_they_are(data, lines):
    assert [line for chunk in stream_lines(written(data)) for line in chunk] == lines


def test_chunks_are_bounded():
    chunks = list(stream_lines(written(b"abc\n" * 100_000)))
    assert sum(map(len, chunks)) == 100_000
    assert {len(chunk) for chunk in chunks} <= set(range(1, 1025))


def test_a_line_is_given_out_before_the_next_is_written():
    read, write = os.pipe()
    chunks = stream_lines(read)
    for line in ("first", "second"):
        os.write(write, f"{line}\nunfin".encode())
        assert next(chunks) == [line]
        os.write(write, b"ished\n")
        assert next(chunks) == ["unfinished"]
    os.close(write)
    assert list(chunks) == []


def test_bad_utf_8_is_named_by_line_and_byte_after_the_lines_before_it():
    for mark, at in ((b"", 7), (b"\xef\xbb\xbf", 10)):
        chunks = stream_lines(written(mark + b"good\nba\xffd\n"))
        assert next(chunks) == ["good"]
        with pytest.raises(InputError, match=rf"^standard input: not UTF-8 at byte {at}, in line 2: 0xff$"):
            next(chunks)


def test_an_unreadable_descriptor_is_reported(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(InputError, match="standard input: cannot be read: Is a directory"):
        next(stream_lines(descriptor))


@pytest.mark.sampled(2)
def test_a_line_too_long_to_translate_is_refused_by_number_before_it_is_encoded(trained):
    translate = translator(trained)
    monster = "5 " * (LONGEST_LINE // 2)
    chunks = [["5"], ["6", monster + "7"]]
    found = translate.stream(chunks)
    assert next(found)[0].text
    with pytest.raises(InputError, match=r"^line 3 has 16,385 characters; at most 16,384 are read$"):
        next(found)


SAID = ["5 6 7", "30", "8 9 10 11 12 13", "20 5"]


def lively(seed: int, **changes: object) -> Transformer:
    """A model that is sure of some things: its weights are large."""
    torch.manual_seed(seed)
    sizes = {"dim": 24, "heads": 2, "feed_forward_dim": 32, "encoder_layers": 1, "decoder_layers": 1, "clip": 3}
    model = Transformer(ModelConfig(**{**sizes, "dropout": 0.0, "attention_dropout": 0.0, **changes}), VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def together(*models: Transformer, **search: object) -> TorchTranslator:
    """A model, or an ensemble of several."""
    return translator(Ensemble(models) if len(models) > 1 else models[0], max_length_extra=3, **search)


@torch.no_grad()
@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_ensemble_searches_by_the_mean_of_probabilities(beam_size):
    """Models of other shapes among them; the score is that of the mean, computed from whole sequences."""
    models = lively(1), lively(2, dim=32, decoder_layers=2), lively(3, positions="sinusoidal", clip=None)
    found = together(*models, beam_size=beam_size).n_best(SAID, TranslateOptions(n_best=beam_size))
    assert [best.text for best, *_ in found] != together(models[0], beam_size=beam_size).translate(SAID)
    for line, hypotheses in zip(SAID, found, strict=True):
        src = torch.tensor([[*WordTokenizer().encode(line), 2]])
        for h in hypotheses:
            tgt_in, tgt_out = torch.tensor([[1, *h.tokens]]), torch.tensor([*h.tokens, 2])
            of_each = [model(src, torch.tensor([src.shape[1]]), tgt_in)[0].softmax(-1) for model in models]
            total = (sum(of_each) / 3).gather(1, tgt_out[:, None]).log().sum().item()
            assert h.score == pytest.approx(total / ((5 + len(h.tokens) + 1) / 6) ** 0.6, rel=1e-4, abs=1e-4)


def test_an_ensemble_of_one_model_twice_says_what_that_one_says():
    alone, twice = (
        together(*models).n_best(SAID, TranslateOptions(n_best=2)) for models in ([lively(1)], [lively(1), lively(1)])
    )
    assert [[h.text for h in of_line] for of_line in alone] == [[h.text for h in of_line] for of_line in twice]
    scores = [[h.score for of_line in found for h in of_line] for found in (alone, twice)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_an_ensemble_scores_given_translations():
    models, sides = (lively(1), lively(2)), ([[5, 6], [7]], [[8, 9, 10], []])
    found = together(*models).log_probs(*sides)
    each = [together(model).log_probs(*sides) for model in models]
    assert [len(row) for row in found] == [4, 1]
    for row, first, second in zip(found, *each, strict=True):
        mean = (torch.tensor(first).exp() + torch.tensor(second).exp()) / 2
        assert row == pytest.approx(mean.log().tolist(), abs=1e-5)


def test_an_ensemble_reads_what_all_of_them_can_hold():
    limited = [lively(1, positions="learned", clip=None, max_positions=most) for most in (9, 7)]
    assert Ensemble([lively(1), *limited]).max_length == 7
    assert Ensemble([lively(1), lively(2)]).max_length is None


def test_pairs_are_scored_in_order_however_many_at_once(trained, monkeypatch):
    translate, lines = translator(trained), random_lines(50, seed=7)
    pairs = list(zip(lines, reversed(lines), strict=True))
    whole = list(translate.score(pairs))
    assert [[piece for piece, _ in found] for found in whole] == [
        [*WordTokenizer().encode(target), 2] for _, target in pairs
    ]
    monkeypatch.setattr(pipeline, "PAIRS", 7)
    for found, again in zip(whole, translate.score(pairs), strict=True):
        assert [log_prob for _, log_prob in found] == pytest.approx([log_prob for _, log_prob in again], abs=1e-5)


def test_alignments_are_of_each_line_and_follow_what_was_read(trained):
    """It reverses its input, so where it is right the links run backwards; alone and among others they are the same."""
    translate, lines = translator(trained), random_lines(40, shortest=3, longest=7, seed=12)
    options = TranslateOptions(n_best=2, align=True)
    found = translate.n_best(lines, options)
    right = linked = 0
    for line, hypotheses in zip(lines, found, strict=True):
        assert [h.alignment for h in translate.n_best([line], options)[0]] == [h.alignment for h in hypotheses]
        words, (best, *_) = line.split(), hypotheses
        if best.text.split() == words[::-1]:
            right += len(words)
            linked += sum(source == len(words) - 1 - target for source, target in best.alignment)
    assert right > 50
    assert linked > 0.6 * right
    assert all(h.alignment == [] for of_line in translate.n_best(lines, TranslateOptions(n_best=2)) for h in of_line)


def test_tags_are_kept_and_the_rest_is_what_it_is_without_them(trained, caplog, monkeypatch):
    translate, lines = translator(trained), random_lines(30, shortest=4, longest=7, seed=15)
    plain = translate.n_best(lines, TranslateOptions(n_best=2))
    with_tags = [" ".join([*line.split()[:2], "%s", *line.split()[2:]]) for line in lines]
    found = translate.n_best([*with_tags, "{x}", "<b>5</b> 6"], TranslateOptions(n_best=2, keep_tags=True))
    for before, after in zip(plain, found, strict=False):
        assert [h.text.split().count("%s") for h in after] == [1, 1]
        assert [[word for word in h.text.split() if word != "%s"] for h in after] == [h.text.split() for h in before]
        assert [(h.score, h.tokens) for h in after] == [(pytest.approx(h.score, abs=1e-5), h.tokens) for h in before]
        assert [h.alignment for h in after] == [[], []]
    assert [h.text for h in found[30]] == ["{x}"]
    assert found[31][0].text.count("<b>") == 1
    right = [  # it reverses, so the word that %s stood behind is the last but one there, and %s behind that
        after[0].text.split()[-2:] == ["%s", line.split()[0]]
        for line, before, after in zip(lines, plain, found, strict=False)
        if before[0].text.split() == line.split()[::-1]
    ]
    assert len(right) > 8
    assert sum(right) > 0.6 * len(right)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        monkeypatch.setattr(translate, "align_batch", lambda src_ids, _: [[]] * len(src_ids))
        assert translate.translate(["", "5 {x} 6"], TranslateOptions(keep_tags=True))[1].endswith("{x}")
    assert caplog.messages == ["line 2: the place of {x} is a guess"]


def test_keeping_tags_works_without_alignments_and_prefixes_alone(trained):
    with pytest.raises(InputError, match="keep_tags does not work with align"):
        TranslateOptions(keep_tags=True, align=True)
    translate, options = translator(trained), TranslateOptions(keep_tags=True)
    with pytest.raises(InputError, match="keep_tags does not work with prefixes"):
        translate.translate(["5"], options, prefixes=["6"])
    assert translate.translate(["5"], options, prefixes=[""]) == translate.translate(["5"])


class TwoSided(WordTokenizer):
    """Other pieces on the side of the target, and a mark more around sources."""

    special = SpecialTokens(src_begin=(3,))

    def encode_target(self, text: str) -> list[int]:
        return [i + 1 for i in self.encode(text)]


def test_each_side_of_a_pair_is_read_by_its_own_pieces_and_marks():
    model = small_model("learned", max_positions=6)
    translate = TorchTranslator(model, TwoSided(), SearchConfig())  # type: ignore[arg-type]
    (found,) = translate.score([("4 5 6 7", "4 5 6 7 8")])
    assert [piece for piece, _ in found] == [5, 6, 7, 8, 9, 2]
    with pytest.raises(InputError, match=r"^source line 2 has 5 pieces, but this model reads at most 4$"):
        list(translate.score([("4", "4"), ("4 5 6 7 8", "4")]))
    with pytest.raises(InputError, match=r"^target line 1 has 6 pieces, but this model reads at most 5$"):
        list(translate.score([("4", "4 5 6 7 8 9")]))
