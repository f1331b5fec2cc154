"""What the README shows can be typed."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from relattn import relative_attention
from relattn.translation import cli
from relattn.translation.settings import recipe_flags

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


def test_the_operator_in_your_own_model():
    names: dict[str, object] = {}
    exec(block("python"), names)
    query, key, value = (names[name] for name in ("query", "key", "value"))
    tables = (table.weight for table in (names["attention"].rel_key, names["attention"].rel_value))
    options = {"clip": 16, "is_causal": True, "key_lengths": torch.tensor([100, 60])}
    wanted = relative_attention(query, key, value, *tables, **options, backend="reference")
    torch.testing.assert_close(names["out"], wanted)


def test_the_recipe_and_the_commands(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(block("yaml"), encoding="utf-8")
    assert "--train.steps=4000" in recipe_flags(path)
    assert set(re.findall(r"^    relattn ([a-z]+) ", README, re.MULTILINE)) <= set(cli.COMMANDS)


def test_every_file_it_links_to_is_there():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
