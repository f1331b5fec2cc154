"""Guided alignment: which pairs are supervised and how, what the model learns, and what is refused."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from relattn_mt import bundle
from relattn_mt.alignment_head import AttentionHead, measure
from relattn_mt.config import AugmentConfig, Recipe
from relattn_mt.data.encode import load_data
from relattn_mt.data.storage import open_pairs, write_pairs
from relattn_mt.tokens.text_files import ParallelFiles
from relattn_mt.training.train import train

from tests.support.commands import refusal
from tests.support.training_states import assert_same, state_of, with_train

WORDS = {"house": "Haus", "dog": "Hund", "apple": "Apfel", "street": "Straße", "bread": "Brot", "window": "Fenster"}
WORDS |= {"yellow": "gelb", "green": "grün", "small": "klein", "night": "Nacht"}
GUIDED = {"guided_alignment": 1.0}
NAMED = {"alignment_heads": 1}  # the fixture names the layer


@pytest.fixture(scope="module")
def monotone(tmp_path_factory) -> dict[str, Any]:
    """Settings of the data for a text in which each word has one translation, in the same order."""
    directory, random = tmp_path_factory.mktemp("monotone"), Random(1)
    paths: dict[str, Any] = {"vocab_size": 400}  # a piece per word
    for split, count in (("train", 300), ("valid", 30)):
        sources = [random.sample(list(WORDS), random.randint(2, 8)) for _ in range(count)]
        targets = [[WORDS[word] for word in line] for line in sources]
        for side, lines in (("src", sources), ("tgt", targets)):
            path = directory / f"{split}.{side}"
            path.write_text("".join(f"{' '.join(line)}\n" for line in lines))
            paths[f"{split}_{side}"] = str(path)
    return paths


def links_of(recipe: Recipe, steps: int = 6) -> tuple[list[tuple[str, str]], int, int]:
    """Return the linked pieces of the first steps as text, and the number of target tokens with and without links."""
    data = load_data(recipe)
    found, pieces, linked = [], 0, 0
    decode = data.tokenizer.decode
    for step in islice(data.train.steps(), steps):
        for batch in step.micro_batches:
            found += [
                (decode([int(batch.src[sentence, source])]), decode([int(batch.tgt_out[sentence, target])]))
                for sentence, target, source in batch.links.tolist()
            ]
            linked += len({(sentence, target) for sentence, target, _ in batch.links.tolist()})
            pieces += batch.target_tokens
    return found, linked, pieces - linked


def both_directions(directory: Path, text: dict[str, Any]) -> dict[str, Any]:
    """Write a list of the text in both directions, and return the settings of the data."""
    directory.mkdir()
    for split in ("train", "valid"):
        src, tgt = text[f"{split}_src"], text[f"{split}_tgt"]
        (directory / split).write_text(f"{src}\t{tgt}\ten\tde\n{tgt}\t{src}\tde\ten\n")
    files = dict.fromkeys(("train_src", "train_tgt", "valid_src", "valid_tgt"), "")
    lists = {"train_list": str(directory / "train"), "valid_list": str(directory / "valid")}
    return {**text, **files, **lists, "language_tokens": "target"}


@pytest.mark.parametrize("tokens", ["none", "target"])
def test_links_are_between_words_and_their_translations(tmp_path, make_recipe, monotone, tokens):
    """Also where each source begins with the token of a language, which has no link."""
    data = {"max_tokens": 64} | (both_directions(tmp_path / "lists", monotone) if tokens == "target" else monotone)
    found, linked, unlinked = links_of(make_recipe(tmp_path / "run", model=NAMED, train=GUIDED, data=data))
    translations = WORDS | {target: source for source, target in WORDS.items()}
    right = sum(translations.get(source) == target for source, target in found)
    assert right / len(found) > 0.95
    assert linked > 2 * unlinked


def test_pairs_that_augmentation_changes_are_not_supervised(tmp_path, make_recipe, monotone):
    augment = AugmentConfig(upper_case=0.5)
    found, linked, unlinked = links_of(
        make_recipe(tmp_path / "run", model=NAMED, train=GUIDED, data={"augment": augment})
    )
    assert 0 < linked < 0.7 * unlinked
    assert all(source == source.lower() for source, _ in found)


@pytest.fixture(scope="module")
def pair_of_models(tmp_path_factory, make_recipe, monotone) -> list[bundle.Bundle]:
    """Models trained without and with guided alignment, otherwise alike."""
    model = {"dim": 16, "heads": 2, "feed_forward_dim": 32, "decoder_layers": 2, "clip": 8}
    model |= {"alignment_layer": "assumed", "dropout": 0.0, "attention_dropout": 0.0}
    steps = {"steps": 80, "warmup_steps": 15, "valid_every": 80, "valid_bleu_lines": 0, "average": 1}
    steps |= {"checkpoint_every": 80, "log_every": 80}
    directory = tmp_path_factory.mktemp("models")
    found = []
    for weight in (0.0, 5.0):
        settings = {**steps, "learning_rate_factor": 0.5, "guided_alignment": weight}
        recipe = make_recipe(directory / str(weight), model=model, train=settings, data={**monotone, "max_tokens": 512})
        found.append(bundle.read_bundle(train(recipe, show=False)))
    return found


def test_a_guided_model_aligns_words_as_in_its_text(monotone, pair_of_models):
    """Of the validation text, read with its references. The other model was trained as long; its best head counts."""
    pairs = list(ParallelFiles(monotone["valid_src"], monotone["valid_tgt"]))
    sources = {target.lower(): source for source, target in WORDS.items()}
    unguided, guided = (measure(parts.translator(), parts.model, pairs, sources) for parts in pair_of_models)
    head = guided[AttentionHead(1, 0)]
    best = max(each.accuracy for each in unguided.values())
    assert sum(head) > 5
    assert head.accuracy > 0.75
    assert head.accuracy > best + 0.3
    model = pair_of_models[1].model
    assert (model.alignment_layer, model.alignment_heads) == (1, 1)
    assert "Word alignment: the first head of decoder layer 2." in pair_of_models[1].card


def test_a_bundle_without_guidance_can_be_trained_further_with_it(tmp_path, make_recipe, monotone, pair_of_models):
    """Its text is encoded with its tokenizer, and the head that is trained aligns words from then on."""
    start = pair_of_models[0]
    settings = {**GUIDED, "init_from": str(start.path), "steps": 1, "average": 1}
    model = replace(start.model, alignment_layer="assumed", alignment_heads=0)
    recipe = replace(make_recipe(tmp_path / "run", data=monotone, train={"steps": 1, "average": 1}), model=model)
    recipe = replace(recipe, train=replace(recipe.train, **settings))
    trained = bundle.read_bundle(train(recipe, show=False)).model
    assert (trained.alignment_layer, trained.alignment_heads) == (1, 1)


def test_recomputed_activations_change_no_bit(tmp_path, make_recipe):
    """Dropout is the same too."""
    recipes = [
        make_recipe(tmp_path / str(again), model=NAMED, train={**GUIDED, "activation_checkpointing": again})
        for again in (False, True)
    ]
    for recipe in recipes:
        train(recipe, show=False)
    assert_same(*map(state_of, recipes))


def test_guidance_changes_the_run(tmp_path, make_recipe, finished):
    recipe = make_recipe(tmp_path / "run", model=NAMED, train=GUIDED)
    train(recipe, show=False)
    assert not torch.equal(state_of(recipe)["model"]["embedding"], state_of(finished)["model"]["embedding"])
    assert (tmp_path / "run/data/links.pairs").exists()
    assert not Path(finished.out, "data/links.pairs").exists()


@pytest.mark.parametrize(
    ("model", "data", "train", "message"),
    [
        ({"alignment_heads": 0}, {}, {}, "requires model.alignment_heads 1, or model.alignment_layer assumed, got 0"),
        ({"alignment_heads": 2}, {}, {}, "requires model.alignment_heads 1, or model.alignment_layer assumed, got 2"),
        ({"alignment_layer": "assumed", "alignment_heads": 2}, {}, {}, "got 2 and assumed"),
        (NAMED, {"augment": AugmentConfig(typos=1.0)}, {}, "shares of data.augment must be below 1, got 1"),
        (NAMED, {}, {"guided_alignment": 1001.0}, "guided_alignment must be in [0, 1000]"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, make_recipe, model, data, train, message):
    assert message in refusal(make_recipe, tmp_path / "run", model=model, data=data, train={**GUIDED, **train})


def test_text_without_links_is_refused(tmp_path, make_recipe):
    """Of one pair, no two pieces share two pairs."""
    files = {name: str(tmp_path / name) for name in ("train_src", "train_tgt")}
    for name, path in files.items():
        Path(path).write_text(f"{name} abc\n")
    recipe = make_recipe(tmp_path / "run", model=NAMED, train=GUIDED, data=files)
    assert "train.guided_alignment requires more training text" in refusal(train, recipe, show=False)


def test_run_continues_with_the_same_weight_and_the_same_links(tmp_path, make_recipe):
    recipe = make_recipe(tmp_path / "run", model=NAMED, train={**GUIDED, "steps": 2})
    train(recipe, show=False)
    more = with_train(recipe, steps=4)
    for weight in (0.0, 0.5):
        message = refusal(train, with_train(more, guided_alignment=weight), resume=True, show=False)
        assert f"train.guided_alignment: 1.0 → {weight}" in message
    links = tmp_path / "run/data/links.pairs"
    pairs = open_pairs(links)
    rows = [[side[:0].tolist() for side in pairs.row(row)] for row in range(len(pairs.src))]
    write_pairs(links, rows, vocab_size=300)
    assert "links.pairs: damaged" in refusal(train, more, resume=True, show=False)
    links.unlink()
    assert "links.pairs" in refusal(train, more, resume=True, show=False)
