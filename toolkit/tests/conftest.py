"""A small parallel text, a small recipe for it, a finished run, and a loopback hub."""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from relattn_mt.config import SCHEMES, DataConfig, ModelConfig, Recipe, SearchConfig, TrainConfig

from tests.support.commands import Result
from tests.support.loopback import Hub

WORDS = {"one": "eins", "cat": "Katze", "sat": "saß", "on": "auf", "mat": "Matte", "and": "und", "two": "zwei"}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of files with 48 training pairs of 1 to 12 words, whose target is reversed, and 7 validation pairs."""
    directory = tmp_path_factory.mktemp("text")
    source = random.Random(1)
    paths = {}
    for split, count in (("train", 48), ("valid", 7)):
        lines = [[source.choice(list(WORDS)) for _ in range(1 + i % 12)] for i in range(count)]
        sides = {"src": lines, "tgt": [[WORDS[word] for word in reversed(line)] for line in lines]}
        for side, content in sides.items():
            path = directory / f"{split}.{side}"
            path.write_text("".join(" ".join(line) + "\n" for line in content), encoding="utf-8")
            paths[f"{split}_{side}"] = str(path)
    return paths


@pytest.fixture(scope="session")
def make_recipe(text: dict[str, str]) -> Callable[..., Recipe]:
    """Function make_recipe(out, model={…}, data={…}, train={…}) that returns a recipe of a short training run."""

    def make(out: Path, *, model: dict | None = None, data: dict | None = None, train: dict | None = None) -> Recipe:
        small = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 1, "decoder_layers": 1}
        small["alignment_layer"] = 0  # so that it is not measured
        model = model or {}
        if "clip" in SCHEMES[model.get("positions", "relative")].options:
            model = {"clip": 2, **model}
        steps = {"steps": 6, "warmup_steps": 4, "log_every": 2, "valid_every": 2, "valid_bleu_lines": 3}
        kept = {"checkpoint_every": 2, "keep": 3, "average": 2, "accelerator": "cpu", "threads": 1}
        return Recipe(
            out=str(out),
            model=ModelConfig(**{**small, **model}),
            data=DataConfig(**{**text, "vocab_size": 300, "max_tokens": 128, **(data or {})}),
            train=TrainConfig(**{**steps, **kept, **(train or {})}),
            search=SearchConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3),
        )

    return make


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, make_recipe: Callable[..., Recipe]) -> Recipe:
    """Recipe of a finished run. Read it, do not write to it."""
    from relattn_mt.training.train import train

    recipe = make_recipe(tmp_path_factory.mktemp("runs") / "finished")
    train(recipe, show=False)
    return recipe


@pytest.fixture(scope="session")
def model(finished: Recipe, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a bundle with random weights, so that different lines have different translations. Do not write."""
    import torch

    from tests.support.bundles import save_changed

    generator = torch.Generator().manual_seed(1)
    return save_changed(
        f"{finished.out}/bundle",
        tmp_path_factory.mktemp("random") / "bundle",
        lambda weight: weight + 0.7 * torch.randn(weight.shape, generator=generator),
    )


@pytest.fixture
def relattn(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Function that runs a command in this process: relattn("translate", bundle, ...)."""
    import torch
    from relattn_mt.commands import main as cli

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        threads = torch.get_num_threads()
        try:
            code: int | str | None = cli.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        finally:
            torch.set_num_threads(threads)
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Hub that huggingface_hub uses, with an empty cache and a user who is logged in."""
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, args=(0.01,))
        thread.start()
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {
            **{"ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": template},
            **{"HF_HUB_CACHE": str(tmp_path / "cache"), "HF_ASSETS_CACHE": str(tmp_path / "assets")},
            **{"HF_TOKEN_PATH": str(tmp_path / "token"), "AGENT_HARNESSES_PATH": str(tmp_path / "harnesses.json")},
            **{"HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_TELEMETRY": False},
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "hf_writer")
        try:
            yield hub
        finally:
            huggingface_hub.close_session()
            hub.shutdown()
            thread.join()
