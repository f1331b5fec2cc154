"""The layer and the head that align best: found where it is, and made the first one without changing the model."""

import random
from dataclasses import replace

import numpy as np
import pytest
from relattn_mt import alignment_head
from relattn_mt.alignment_head import AttentionHead, measure, with_best, with_head
from relattn_mt.bundle import Bundle, quantize_bundle, read_bundle
from relattn_mt.model.torch_engine import TorchEngine
from relattn_mt.text.lexicon import Agreement

from tests.support.foreign_bundles import LINES, make_bundle

SIZES = {"decoder_layers": 2, "heads": 3}
PLACES = [AttentionHead(layer, head) for layer in range(2) for head in (0, 1, 2, None)]


@pytest.fixture
def bundle(tmp_path) -> Bundle:
    return make_bundle(tmp_path / "bundle", **SIZES)


def sides(bundle: Bundle) -> tuple[list[list[int]], list[list[int]]]:
    return [bundle.tokenizer.encode(x) for x in LINES], [bundle.tokenizer.encode_target(x) for x in LINES[::-1]]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("is_quantized", [False, True])
def test_a_head_becomes_the_first_one(tmp_path, place, is_quantized):
    """Scores stay, and the alignment is that of the head. The mean of all heads stays too."""
    bundle = make_bundle(tmp_path / "bundle", **SIZES, head_dim=6)  # heads · head_dim is not the dimension
    if is_quantized:
        quantize_bundle(bundle, tmp_path / "int8")
        bundle = read_bundle(tmp_path / "int8")
    changed = with_head(bundle, place)
    changed = replace(changed, path=tmp_path / "changed")
    changed.save()
    changed = read_bundle(changed.path)
    heads = 0 if place.head is None else 1
    assert (changed.model.alignment_layer, changed.model.alignment_heads) == (place.layer, heads)
    src, tgt = sides(bundle)
    before, after = bundle.torch_translator(), changed.torch_translator()
    for mine, its in zip(after.log_probs(src, tgt), before.log_probs(src, tgt), strict=True):
        assert mine == pytest.approx(its, abs=1e-4)
    expected = weights_of(bundle, place)
    for translator in (after, changed.translator(precision="fp32")):
        for mine, its in zip(translator.runner.attention(src, tgt), expected, strict=True):
            np.testing.assert_allclose(mine[: len(its)], its[: len(mine)], atol=1e-5)


def weights_of(bundle: Bundle, place: AttentionHead) -> list[np.ndarray]:
    """Return the attention weights of a place, computed by the modules of PyTorch."""
    translator = bundle.torch_translator()
    engine = translator.engine
    assert isinstance(engine, TorchEngine)
    layer = engine.model.decoder[place.layer]
    original = layer.cross_attention.weights

    def weights(*arguments):
        return original(*arguments)[:, slice(None) if place.head is None else [place.head]]

    layer.cross_attention.weights = weights
    engine.alignment = place.layer, bundle.model.heads
    return translator.runner.attention(*sides(bundle))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_best_place_is_found(bundle, place):
    """A lexicon has the links of that place. Only that place agrees with all of them."""
    draw = random.Random(1)
    words = ["".join(draw.sample("apelsiwundr", 3)) for _ in range(400)]
    words = list(dict.fromkeys(words))
    pairs = [(" ".join(words[i : i + 5]), " ".join(words[i + 5 : i + 10])) for i in range(0, 200, 10)]
    src, tgt = ([bundle.tokenizer.encode(pair[side]) for pair in pairs] for side in (0, 1))
    linked = with_head(bundle, place).translator(precision="fp32").align(src, tgt)
    sources = {}
    for (source, target), links in zip(pairs, linked, strict=True):
        for source_index, target_index in links:
            sources[target.split()[target_index]] = source.split()[source_index]
    found = measure(bundle.translator(precision="fp32"), bundle.model, pairs, sources)
    assert set(found) == set(PLACES)
    assert found[place] == Agreement(right=len(sources))
    assert all(found[other].right < len(sources) for other in PLACES if other != place)


def test_a_text_that_says_too_little_changes_nothing(bundle):
    same, note = with_best(bundle, [("a b", "c d")] * 20)
    assert same is bundle
    assert "not measured" in note


@pytest.mark.parametrize("heads", [None, 1])
def test_of_places_that_are_equally_right_the_last_layer_is_named(bundle, heads, monkeypatch):
    """And all of its heads, if these are among them. The order in which they were measured does not matter."""
    last = max(place.layer for place in PLACES)
    for places in (PLACES, PLACES[::-1]):
        found = {place: Agreement(right=300 if heads is None or place.head is not None else 200) for place in places}
        monkeypatch.setattr(alignment_head, "measure", lambda *_, found=found: found)
        model = with_best(bundle, [("a b", "c d")] * 20)[0].model
        assert (model.alignment_layer, model.alignment_heads) == (last, 0 if heads is None else 1)
