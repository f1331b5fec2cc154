"""ONNX exports of models with every position scheme, which take ten seconds each."""

import os
import subprocess
import sys

import pytest
from relattn_mt.config import SCHEMES
from relattn_mt.formats.onnx import PAST, export

from examples.translate_onnx import Model
from testing.covering import pairwise
from testing.foreign_bundles import random_lines
from testing.schemes import formats_of
from toolkit.tests.formats.test_onnx import check_imported_model, make


def is_valid(positions: str, tables: str | None, beyond: str | None, per_head: bool | None, norm: str) -> bool:
    relative = positions.startswith("relative")
    return all((value is not None) == relative for value in (tables, beyond, per_head)) and (relative or norm == "pre")


@pytest.mark.filterwarnings("ignore:positions. none:UserWarning")
@pairwise(
    valid=is_valid,
    positions=[name for name in SCHEMES if "onnx" in formats_of(name)],
    tables=[None, "both", "keys", "values"],
    beyond=[None, "clip", "zero"],
    per_head=[None, False, True],
    norm=["pre", "post"],
)
def test_export_agrees_with_the_bundle(tmp_path, positions, tables, beyond, per_head, norm):
    relative = {"relative_tables": tables, "beyond": beyond, "tables_per_head": per_head}
    parts = make(tmp_path, positions=positions, norm=norm, **relative)
    sample = random_lines([1, 2, 9, 24, 1])
    parity = export(parts, tmp_path / "out", sample=["", *sample]).parities["float32"]
    assert parity.worst <= 1e-4
    model, ours = Model(tmp_path / "out"), parts.translator()
    found = ours.n_best(sample)
    assert (parity.lines, parity.tokens) == (5, sum(len(best.tokens) + 1 for (best,) in found))
    assert parity.tokens > 10 * PAST  # longer than what the graphs are traced with
    for line, (best,) in zip(sample, found, strict=True):
        assert model.search(ours.tokenizer.encode(line)) == best.tokens


def test_imported_models(tmp_path):
    check_imported_model(tmp_path)


def test_nothing_is_written_to_the_home_directory(tmp_path):
    """onnxruntime keeps a device identifier and a database there by default."""
    parts = make(tmp_path)
    code = (
        "import sys; from pathlib import Path; from relattn_mt.bundle import read_bundle\n"
        "from relattn_mt.support.errors import InputError; from relattn_mt.formats.onnx import export\n"
        "for lines in (0, 2):  # the first is refused\n"
        "    try: export(read_bundle(sys.argv[1]), Path(sys.argv[2]), sample=['one apple'] * lines)\n"
        "    except InputError: pass\n"
    )
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "ORT_"))}
    command = [sys.executable, "-c", code, str(parts.path), str(out)]
    subprocess.run(command, env=environment | {"HOME": str(home)}, check=True)
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert out.exists()
