"""Read settings from YAML files, which are recipes."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from relattn_mt.config.base import Settings
from relattn_mt.config.settings import Quoted, Unquoted, read_text, to_config
from relattn_mt.support.errors import InputError, one_line, reading, require
from relattn_mt.support.types import AnyPath

LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # all values are text; with libyaml it is faster
_MAX_DEPTH = 2  # levels of groups, because an alias can contain itself


def read_yaml(path: AnyPath) -> Settings:
    """Read the settings in a YAML file of at most 1 MiB. Raise an InputError if it is not a mapping of names."""
    text = read_text(path, "not YAML")
    with reading(path, "not YAML"):
        return parse_yaml(text, path)


def parse_yaml(text: str, path: AnyPath) -> Settings:
    """Return the settings in a text of YAML. `path` is for messages."""
    root = yaml.compose(text, Loader=LOADER)
    if root is None or not root.value:
        raise InputError(f"{path}: must have settings, got an empty file")
    return _settings(root, path)


def _settings(root: yaml.Node, path: AnyPath, *, in_stage: bool = False) -> Settings:
    """Return the settings of a mapping.

    Stages are checked here, because only here the number of a stage is known for messages.
    """
    settings: Settings = {}
    require(isinstance(root, yaml.MappingNode), f"{path}: must be a mapping of names to values")
    for name, node in _leaves(root):
        require(name not in settings, f"{path}: {name} is given twice, again in line {node.start_mark.line + 1}")
        settings[name] = None
        if isinstance(node, yaml.ScalarNode):
            kind = Unquoted if node.value in ("null", "~") else str
            settings[name] = Quoted(node.value) if node.style else kind(node.value)
        elif isinstance(node, yaml.SequenceNode) and name == "stages" and not in_stage:
            from relattn_mt.config.recipe import StageConfig

            items = [(f"{path}: stage {number}", each) for number, each in enumerate(node.value, start=1)]
            settings[name] = [to_config(StageConfig, _settings(each, at, in_stage=True), at) for at, each in items]
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(each, yaml.ScalarNode) for each in node.value):
            settings[name] = [each.value for each in node.value]
    return settings


def _leaves(group: yaml.Node, prefix: str = "") -> Iterator[tuple[str, yaml.Node]]:
    """Yield the full name and the value of each setting in a group."""
    for key, value in group.value:
        name = prefix + (one_line(key.value, 40) if isinstance(key, yaml.ScalarNode) else "a list or a group")
        if isinstance(value, yaml.MappingNode) and value.value and prefix.count(".") < _MAX_DEPTH:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value
