"""ONNX exports of models with every position scheme, which take ten seconds each."""

import json
import os
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import onnxruntime
import pytest
from relattn_mt.bundle import Bundle
from relattn_mt.commands import main as cli
from relattn_mt.config import SCHEMES, as_dict
from relattn_mt.formats.onnx import PAST, SRC_LEN, export

from examples.translate_onnx import Model
from tests.support.covering import pairwise
from tests.support.foreign_bundles import LINES, random_lines
from tests.support.schemes import formats_of
from toolkit.tests.formats.test_onnx import GREEDY, Terminal, assert_graphs_agree, check_imported_model, make


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Bundle, Path]:
    """A bundle and its export, made by the command. Read them, do not write to them."""
    path = tmp_path_factory.mktemp("exported")
    parts, sample = make(path), path / "sample.txt"
    sample.write_text("".join(f"{line}\n" for line in ["", *random_lines([1, 9, 24])]))
    command = ["export", "onnx", str(parts.path), "--out", str(path / "out"), "--check_lines", str(sample), "--quiet"]
    with redirect_stderr(Terminal()) as errors:
        assert cli.main(command) == 0
    assert errors.getvalue() == ""
    return parts, path / "out"


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


def test_files_and_sizes_of_an_export(exported, capsys):
    """Graphs accept any sizes, and the example finds the translations of the bundle."""
    parts, out = exported
    assert {file.name for file in out.iterdir()} == {
        "encoder.onnx", "decoder.onnx", "config.json", "tokenizer.model", "README.md"
    }  # fmt: skip
    encoder, decoder = (onnxruntime.InferenceSession(str(out / f"{name}.onnx")) for name in ("encoder", "decoder"))
    sizes = [1, "rows", 3, "src_len", 4], [1, "rows", 3, "past", 4]
    assert {x.name: x.shape for graph in (encoder, decoder) for x in graph.get_inputs()} == {
        **{"src": ["rows", "src_len"], "src_lengths": ["rows"], "tokens": ["rows", 1]},
        **{"source_keys": sizes[0], "source_values": sizes[0], "keys": sizes[1], "values": sizes[1]},
    }
    assert [x.name for x in decoder.get_outputs()] == ["log_probs", "new_keys", "new_values"]
    ours, model = parts.translator(), parts.make_model().eval()
    assert_graphs_agree(model, lambda x: encoder.run(None, x), lambda x: decoder.run(None, x))
    about = json.loads((out / "config.json").read_text())
    assert about == {
        **{"src_lang": "en", "tgt_lang": "pt_BR", "pad": 0, "bos": 1, "eos": 2, "search": as_dict(GREEDY)},
        **{"banned": [0, 1], "src_begin": [], "src_end": [2], "tgt_begin": []},
        **{"layers": 1, "heads": 3, "head_dim": 4, "max_length": None},
    }
    card = (out / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# A model\n\n## Export\n\n")
    sample, model = random_lines([1, 9, 24]), Model(out)
    assert f"{3 * (4 * PAST + 1)} tokens in 3 lines" in card
    assert max(len(ours.tokenizer.encode(line)) for line in sample) > 4 * SRC_LEN
    for line, (best,) in zip(sample, ours.n_best(sample), strict=True):
        assert model.search(ours.tokenizer.encode(line)) == best.tokens


def test_example_needs_neither_torch_nor_relattn(exported, tmp_path):
    """It also writes nothing to the home directory, where onnxruntime keeps a device identifier by default."""
    parts, out = exported
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'relattn'))); sys.argv = sys.argv[1:]"
    code = f"{blocked}; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    script = Path(__file__).parents[2] / "examples" / "translate_onnx.py"
    lines = [LINES[0], "", *random_lines([3])]
    run = subprocess.run(
        [sys.executable, "-c", code, str(script), str(out)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path)},
    )
    assert run.stdout.splitlines() == parts.translator().translate(lines)
    assert not list(tmp_path.iterdir())


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
