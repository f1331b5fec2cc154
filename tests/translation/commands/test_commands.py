"""The command line: a mistake is one line and exit code 2 with nothing half-written; text goes in and comes out."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from relattn import translation
from relattn.translation import bundle
from relattn.translation.commands import main as cli
from relattn.translation.config import OPTIONS, Calibration, ModelConfig, Recipe, SamplingOptions, SearchConfig, dump
from relattn.translation.data.corpora import read_parallel
from relattn.translation.errors import InputError, Interrupted
from relattn.translation.evaluation import score
from relattn.translation.model.positions import SCHEMES
from relattn.translation.training import run
from relattn.translation.translate.confidence import confidence
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.torch_translator import TorchTranslator

LINES = ["one cat sat", "", "on two mat and one cat", "   ", "two", "one cat sat"]


class Result(NamedTuple):
    code: int | str | None
    out: str
    err: str


@pytest.fixture
def relattn(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """relattn("translate", bundle, …): a command run in this process."""

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


def assert_refused(result: Result, message: str) -> None:
    assert result == (2, "", f"relattn: error: {message}\n")


@pytest.fixture(scope="module")
def model(finished: Recipe, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a bundle whose weights are random enough for every line to have a translation of its own."""
    path = tmp_path_factory.mktemp("lively") / "bundle"
    translator = bundle.read_bundle(f"{finished.out}/bundle").translator()
    generator = torch.Generator().manual_seed(1)
    for parameter in translator.model.parameters():
        parameter.data += 0.7 * torch.randn(parameter.shape, generator=generator)
    bundle.save(path, model=translator.model, recipe=finished, tokenizer=translator.tokenizer, card="")
    return str(path)


@pytest.fixture
def recipe_file(tmp_path: Path, make_recipe: Callable[..., Recipe]) -> Path:
    """A recipe that trains, into tmp_path/run."""
    path = tmp_path / "recipe.yaml"
    path.write_text(dump(make_recipe(tmp_path / "run")), encoding="utf-8")
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, bool]]:
    """The recipes that `train` is asked to train, which it does not."""
    calls: list[tuple[Recipe, bool]] = []

    def train(recipe: Recipe, *, resume: bool) -> Path:
        calls.append((recipe, resume))
        return Path("somewhere")

    monkeypatch.setattr(run, "train", train)
    return calls


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """reading(content): what is on standard input."""
    with (tmp_path / "stdin").open("w+b") as file:

        def put(content: bytes) -> None:
            file.seek(0)
            file.truncate()
            file.write(content)
            file.seek(0)

        monkeypatch.setattr(sys, "stdin", file)
        yield put


# Help


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_without_a_command_all_are_shown(relattn, arguments):
    result = relattn(*arguments)
    assert (result.code, result.err) == (0, "")
    assert all(f"\n  {name} " in result.out for name in ("demo", "train", "evaluate", "translate", "average", "push"))


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_explains_itself(relattn, command):
    result = relattn(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.split()[:3] == ["usage:", "relattn", command]
    assert (cli.COMMANDS[command].__doc__ or "").split(":")[0] in " ".join(result.out.split())


def test_the_help_of_train_explains_every_setting(relattn):
    shown = " ".join(relattn("train", "--help").out.split())
    for setting in (
        "--model.clip",
        "--data.max_tokens",
        "--train.warmup_steps",
        "--search.alpha",
        "--seed",
        "--resume",
    ):
        assert setting in shown
    assert 'of "relative": k, the clipping distance (16)' in shown
    assert "micro-batches whose gradients make one optimiser step" in shown


def test_help_loads_nothing_that_only_work_needs():
    script = "import sys; from relattn.translation import cli; cli.main(['--help'])\n"
    script += "assert not {'lightning', 'datasets', 'sacrebleu', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


# What is refused


def test_an_unknown_command(relattn):
    commands = ", ".join(cli.COMMANDS)
    assert_refused(relattn("trian", "x"), f"there is no command 'trian'; the commands are {commands}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {heads: 5, dim: 12}", "heads must divide dim, got heads 5 and dim 12"),
        ("model: {clip: -1}", "clip must be at least 0, got -1"),
        ("train: {warmup_steps: 0}", "warmup_steps must be at least 1, got 0"),
        ("seed: -3", "seed must be at least 0, got -3"),
        ("model: {clipp: 3}", "{path}: unknown setting model.clipp; is model.clip meant?"),
        ("model: {dim: wide}", "Parser key \"model.dim\": Expected a <class 'int'>. Got value: wide"),
        ("model: {dim: 2.5}", "Parser key \"model.dim\": Expected a <class 'int'>. Got value: 2.5"),
        ("model: {dropout: yes}", "Parser key \"model.dropout\": Expected a <class 'float'>. Got value: True"),
        (
            "train: {learning_rate: inf}",
            "Parser key \"train.learning_rate\": Expected a <class 'float'>. Got value: inf",
        ),
        (
            "model: {norm: mid}",
            "Parser key \"model.norm\": Expected a typing.Literal['pre', 'post']. Got value: mid",
        ),
        ("data: {train_src: a.txt}", "train_src and train_tgt go together, got 'a.txt' and ''"),
        ("just words", "{path}: a recipe is a list of names and values, this is 'just words'"),
    ],
)
def test_a_recipe_that_will_not_do(relattn, tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    assert_refused(relattn("train", path, "--out", tmp_path / "run"), message.format(path=path))
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_not_yaml_is_one_line(relattn, tmp_path):
    (tmp_path / "recipe.yaml").write_text("model: {\n  dim\n: [")
    result = relattn("train", tmp_path / "recipe.yaml")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"relattn: error: {tmp_path}/recipe.yaml: not YAML: ")


def test_a_recipe_that_is_missing(relattn, tmp_path):
    assert_refused(relattn("train", tmp_path / "no"), f"{tmp_path}/no: cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.nosuch=3"], "unrecognized arguments: --model.nosuch=3"),
        (["more"], "unrecognized arguments: more"),
        (["--model.clip"], "argument --model.clip: expected one argument"),
        (["--model.dim=x"], "Parser key \"model.dim\": Expected a <class 'int'>. Got value: x"),
        (
            ["--model.clip=x"],
            'Parser key "model.clip": Does not validate against any of the Union subtypes Subtypes: '
            "[<class 'int'>, <class 'NoneType'>] Errors: - Expected a <class 'int'> - Expected a <class 'NoneType'> "
            "Given value type: <class 'str'> Given value: x",
        ),
        (["--model.positions=t5", "--model.clip=9"], "clip means nothing for t5 positions, got 9"),
        (["--model.kernel_size=5"], "kernel_size means nothing for relative positions, got 5"),
    ],
)
def test_flags_that_will_not_do(relattn, recipe_file, arguments, message):
    assert_refused(relattn("train", recipe_file, *arguments), message)
    assert not (recipe_file.parent / "run").exists()


def sides(tmp_path: Path, src: bytes | None, tgt: bytes | None) -> tuple[Path, Path]:
    for name, content in (("src.txt", src), ("tgt.txt", tgt)):
        if content is not None:
            (tmp_path / name).write_bytes(content)
    return tmp_path / "src.txt", tmp_path / "tgt.txt"


TEXT = b"one cat\nsat on\ntwo mat\n" * 20


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (TEXT, TEXT[:-8], "the two sides differ in length: {src} has 60 lines, {tgt} has 59"),
        (TEXT, None, "{tgt}: no such file"),
        (b"", TEXT, "{src}: the file is empty"),
        (TEXT, TEXT[:13] + b"\xff" + TEXT[13:], "{tgt}: not UTF-8 at byte 13, in line 2: 0xff"),
    ],
    ids=["different lengths", "missing", "empty", "not UTF-8"],
)
@pytest.mark.parametrize("split", ["train", "valid", "evaluate"])
def test_text_that_will_not_do(relattn, tmp_path, recipe_file, model, split, src, tgt, message):
    paths = sides(tmp_path, src, tgt)
    if split == "evaluate":
        result = relattn("evaluate", model, "--src", paths[0], "--ref", paths[1], "--output", tmp_path / "out.txt")
    else:
        result = relattn("train", recipe_file, f"--data.{split}_src={paths[0]}", f"--data.{split}_tgt={paths[1]}")
    assert_refused(result, message.format(src=paths[0], tgt=paths[1]))
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "out.txt").exists()


def test_places_that_will_not_do(relattn, recipe_file, finished, tmp_path):
    assert_refused(
        relattn("train", recipe_file, "--out", finished.out),
        f"{finished.out}: holds a run already; give --resume to go on with it, or another directory as out",
    )
    result = relattn("train", recipe_file, "--out", recipe_file / "run")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "Not a directory" in result.err


def test_resuming_what_is_not_there_or_has_changed(relattn, recipe_file, finished):
    out = recipe_file.parent / "run"
    assert_refused(relattn("train", recipe_file, "--resume"), f"{out}: holds no run: there is no recipe.yaml")
    changed = ("--out", finished.out, "--model.clip=3", "--train.steps=9")
    assert_refused(
        relattn("train", recipe_file, "--resume", *changed),
        f"{finished.out}: the recipe has changed since this run began: model.clip: 2 → 3",
    )


@pytest.mark.parametrize("command", ["translate", "evaluate"])
@pytest.mark.parametrize("damage", ["missing", "incomplete", "truncated"])
def test_a_bundle_that_will_not_do(relattn, tmp_path, model, command, damage):
    path = tmp_path / "bundle"
    if damage != "missing":
        shutil.copytree(model, path)
    weights = path / "model.safetensors"
    if damage == "incomplete":
        weights.unlink()
    elif damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1])
    result = relattn(command, path, *(("--embedded", "test") if command == "evaluate" else ()))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    messages = {
        "missing": f"{path}: no such directory; a bundle is a directory\n",
        "incomplete": f"{path}: not a complete bundle: it has no model.safetensors\n",
        "truncated": f"{weights}: truncated, damaged, or not a safetensors file: ",
    }
    assert result.err.startswith(f"relattn: error: {messages[damage]}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads=0"], "threads must be at least 1, got 0"),
        (["--beam_size=0"], "beam_size must be at least 1, got 0"),
        (["--alpha=-1"], "alpha must be at least 0, got -1.0"),
        (["--n_best=3"], "cannot give the 3 best translations with beam_size 2"),
        (["--n_best=-1"], "cannot give the -1 best translations with beam_size 2"),
        (["--top_k=5"], "--top_k is for --sample, which is not given"),
        (["--seed=5"], "--seed is for --sample, which is not given"),
        (["--sample", "--beam_size=3"], "--beam_size is for a search, and --sample draws instead"),
        (["--sample", "--early_stopping=true"], "--early_stopping is for a search, and --sample draws instead"),
        (["--sample", "--terms=x"], "--terms is for a search, and --sample draws instead"),
        (["--terms=nowhere.tsv"], "nowhere.tsv: no such file"),
        (["--sample", "--temperature=0"], "temperature must be at least 0.001, got 0.0"),
        (["--prefix=nowhere.txt"], "nowhere.txt: no such file"),
    ],
)
def test_ways_of_translating_that_will_not_do(relattn, reading, model, arguments, message):
    reading(b"one cat\n")
    assert_refused(relattn("translate", model, *arguments), message)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, torch.float32)),  # as many as PyTorch has
        (["--threads=3"], (3, torch.float32)),
        (["--threads=1", "--precision=bf16"], (1, torch.bfloat16)),
    ],
)
def test_threads_and_precision_reach_the_model(relattn, reading, model, monkeypatch, arguments, expected):
    seen = []
    search_batch = TorchTranslator.search_batch

    def watched(self, batch, n):
        seen.append((self.workers, self.model.embedding.dtype))
        return search_batch(self, batch, n)

    monkeypatch.setattr(TorchTranslator, "search_batch", watched)
    reading(b"one cat\n")
    assert relattn("translate", model, *arguments).code == 0
    assert seen == [(expected[0] or torch.get_num_threads(), expected[1])]


def test_a_precision_that_there_is_not(relattn, model):
    result = relattn("translate", model, "--precision=fp8")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "fp8" in result.err
    with pytest.raises(InputError, match=r"^precision must be fp32 or bf16, got 'half'$"):
        bundle.read_bundle(model).translator(precision="half")


@pytest.mark.parametrize("device", ["abacus", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there(relattn, model, device):
    result = relattn("translate", model, "--device", device)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"relattn: error: device {device} cannot be used here: ")


@pytest.mark.parametrize(
    "arguments", [[], ["--src", "a"], ["--ref", "a"], ["--src", "a", "--ref", "b", "--embedded", "test"]]
)
def test_evaluate_needs_one_text(relattn, model, arguments):
    assert_refused(relattn("evaluate", model, *arguments), "evaluate needs --src and --ref, or --embedded")


def test_the_devices_message_is_short(relattn, model):
    result = relattn("translate", model, "--device", "xla")
    assert result.err.startswith("relattn: error: device xla cannot be used here: ")
    assert len(result.err) < 200
    message = "device meta cannot be used here: Tensor.item() cannot be called on meta tensors"
    assert_refused(relattn("translate", model, "--device", "meta"), message)


@pytest.mark.parametrize("command", [("demo",), ("average", "run")])
def test_an_empty_place_is_refused(relattn, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("relattn.translation.demo.demo", None)
    monkeypatch.setattr(run, "average_run", None)
    assert_refused(relattn(*command, "--out="), "out must name a directory")
    assert list(tmp_path.iterdir()) == []


def test_memory_that_does_not_suffice_is_one_line_and_a_bug_is_a_traceback(relattn, monkeypatch):
    monkeypatch.setattr(run, "train", lambda *_, **__: torch.empty(2**50))
    result = relattn("train")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("relattn: error: not enough memory: ")
    monkeypatch.setattr(run, "train", lambda *_, **__: torch.empty(2, 3) @ torch.empty(2, 3))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        relattn("train")


@pytest.mark.parametrize("value", [0, -3, 10**10])
def test_lines_of_the_embedded_corpus_have_a_range(relattn, model, value):
    message = f"lines must be at least 1 and at most 1,000,000,000, got {value}"
    assert_refused(relattn("evaluate", model, "--embedded", "test", "--lines", value), message)


def test_an_output_that_will_not_do_is_refused_before_translating(relattn, tmp_path, model, monkeypatch):
    monkeypatch.setattr(TorchTranslator, "translate", None)
    path = tmp_path / "nowhere" / "out.txt"
    result = relattn("evaluate", model, "--embedded", "test", "--lines", 2, "--output", path)
    message = f"{path}: cannot be written: No such file or directory; what was there before is kept"
    assert_refused(result, message)


def test_averages_that_will_not_do(relattn, tmp_path, finished):
    out = ("--out", tmp_path / "mean")
    assert_refused(relattn("average", tmp_path, *out), f"{tmp_path}: holds no run: there is no recipe.yaml")
    message = f"{finished.out}: cannot average the last 4 checkpoints, it holds 3"
    assert_refused(relattn("average", finished.out, "--last", 4, *out), message)
    assert not (tmp_path / "mean").exists()


# Recipes and overrides


def test_a_recipe_and_what_overrides_it(relattn, recipe_file, asked, make_recipe):
    base = make_recipe(recipe_file.parent / "run")
    flags = (
        "--model.clip",
        7,
        "--model.clip_right=null",
        "--model.tables_per_head",
        "true",
        "--train.learning_rate=2e-3",
    )
    assert relattn("train", recipe_file, *flags, "--data.src_lang", "no", "--out=1e-4").out == "somewhere\n"
    expected = replace(
        base,
        out="1e-4",
        model=replace(base.model, clip=7, tables_per_head=True),
        data=replace(base.data, src_lang="no"),
        train=replace(base.train, learning_rate=0.002),
    )
    relattn("train", recipe_file, "--resume")
    assert asked == [(expected, False), (base, True)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("positions", SCHEMES)
def test_any_scheme_can_be_chosen(relattn, tmp_path, asked, positions):
    """By a flag, or in a recipe that leaves its options out; a flag leaves out those of the recipe's own scheme."""
    model = ModelConfig(positions=positions)
    relattn("train", "--model.positions", positions)
    (tmp_path / "recipe.yaml").write_text(f"model:\n  positions: {positions}\n")
    relattn("train", tmp_path / "recipe.yaml")
    (tmp_path / "dumped.yaml").write_text(dump(Recipe()))
    relattn("train", tmp_path / "dumped.yaml", f"--model.positions={positions}")
    relattn("train", tmp_path / "dumped.yaml", "--model.positions", "cnn", "--model.positions", positions)
    assert asked == [(Recipe(model=model), False)] * 4
    (tmp_path / "dumped.yaml").write_text(dump(Recipe(model=ModelConfig(clip=5))))
    relattn("train", tmp_path / "dumped.yaml", "--model.positions", positions)
    assert asked[-1][0].model == replace(model, clip=5 if "clip" in OPTIONS.get(positions, {}) else None)


def test_what_is_dumped_is_what_is_trained(relattn, tmp_path, asked):
    recipe = Recipe(search=SearchConfig(alpha=1e-9))
    recipe = replace(
        recipe, data=replace(recipe.data, src_lang="no", tgt_lang="null", train_src="1e3", train_tgt="[a]")
    )
    (tmp_path / "recipe.yaml").write_text(dump(recipe))
    relattn("train", tmp_path / "recipe.yaml")
    assert asked == [(recipe, False)]


def test_no_recipe_is_all_defaults(relattn, asked):
    relattn("train")
    relattn("train", "--seed", 5)
    assert asked == [(Recipe(), False), (Recipe(seed=5), False)]


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("recipes/*.yaml")), ids=lambda path: path.stem)
def test_the_recipes_that_come_along_are_recipes(relattn, asked, path):
    assert relattn("train", path).code == 0
    assert asked[0][0] != Recipe()


def test_an_interruption_is_130(relattn, monkeypatch):
    def stop(recipe: Recipe, *, resume: bool) -> Path:
        raise Interrupted("stopped after step 3")

    monkeypatch.setattr(run, "train", stop)
    assert relattn("train") == (130, "", "relattn: stopped after step 3\n")


# Training, translating, scoring


def test_train_prints_where_the_bundle_is(relattn, recipe_file, finished):
    result = relattn("train", recipe_file)
    path = recipe_file.parent / "run" / "bundle"
    assert (result.code, result.out) == (0, f"{path}\n")
    *steps, warning = result.err.splitlines()  # six steps make nothing of order
    assert [line.split("  ")[0] for line in steps] == ["step 2", "step 4", "step 6"]
    assert "the model makes nothing of order" in warning
    ours, theirs = (bundle.read_bundle(p).state for p in (path, Path(finished.out) / "bundle"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_lines_are_translated_in_order_and_in_silence(relattn, reading, model):
    reading("\r\n".join(LINES).encode())
    expected = bundle.read_bundle(model).translator().translate(LINES)
    assert relattn("translate", model) == (0, "".join(f"{line}\n" for line in expected), "")
    assert (expected[1], expected[3]) == ("", "")
    assert expected[0] == expected[5]
    assert len(set(expected)) == 4


def test_progress_is_for_terminals(relattn, reading, monkeypatch, model):
    reading(b"one\ntwo\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    result = relattn("translate", model)
    assert result.out.count("\n") == 2
    assert "2line" in result.err


def test_n_best(relattn, reading, model):
    reading("\n".join(LINES).encode())
    translator = bundle.read_bundle(model).translator()
    translator.search = replace(translator.search, beam_size=3, alpha=0.0)
    expected = [
        f"{number} ||| {found.text} ||| {found.score:.4f}"
        for number, best in enumerate(translator.n_best(LINES, TranslateOptions(n_best=3)))
        for found in best
    ]
    result = relattn("translate", model, "--n_best", 3, "--beam_size", 3, "--alpha", 0)
    assert result == (0, "".join(f"{line}\n" for line in expected), "")
    assert [line.split(" ||| ")[0] for line in expected] == [*"000", "1", *"222", "3", *"444", *"555"]


def test_input_that_is_not_utf_8(relattn, reading, model):
    reading(b"one cat\ntwo \xff mat\n")
    result = relattn("translate", model)
    assert (result.code, result.out.count("\n")) == (2, 1)  # what came before is translated
    assert result.err == "relattn: error: standard input: not UTF-8 at byte 12, in line 2: 0xff\n"


@pytest.mark.whole
def test_a_reader_that_goes_is_no_error(model):
    """Input without end: only the closed pipe stops it."""
    script = f"set -o pipefail; yes 'one cat' | {{ '{sys.executable}' -m relattn translate '{model}'; "
    script += "echo $? >&2; } | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.count("\n"), done.stderr) == (1, "0\n")


def test_evaluate_gives_scores_with_their_signatures(relattn, tmp_path, model, text):
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    (tmp_path / "ref.gz").write_bytes(gzip.compress("\n".join(ref for _, ref in pairs).encode()))
    translations = bundle.read_bundle(model).translator().translate([src for src, _ in pairs])
    expected = score(translations, [ref for _, ref in pairs])
    arguments = ("--src", text["valid_src"], "--ref", tmp_path / "ref.gz", "--output", tmp_path / "out.txt")
    assert relattn("evaluate", model, *arguments) == (0, f"{expected}\n", "")
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in str(expected)
    assert (tmp_path / "out.txt").read_text().splitlines() == translations


def test_prefixes_and_draws(relattn, reading, tmp_path, model):
    reading("\n".join(LINES).encode())
    (tmp_path / "prefixes").write_text("Katze\n\nzwei\n\neins\n\n", encoding="utf-8")
    expected = bundle.read_bundle(model).translator().translate(LINES, prefixes=["Katze", "", "zwei", "", "eins", ""])
    result = relattn("translate", model, "--prefix", tmp_path / "prefixes")
    assert result == (0, "".join(f"{line}\n" for line in expected), "")
    translator = bundle.read_bundle(model).translator()
    translator.sampling = SamplingOptions(top_k=7, temperature=2.0, seed=5)
    expected = [
        f"{number} ||| {found.text} ||| {found.score:.4f}"
        for number, of_line in enumerate(translator.n_best(LINES, TranslateOptions(n_best=3)))
        for found in of_line
    ]
    reading("\n".join(LINES).encode())
    flags = ("--sample", "--top_k", 7, "--temperature", 2.0, "--seed", 5, "--n_best", 3)
    assert relattn("translate", model, *flags).out.split("\n") == [*expected, ""]


def test_a_glossary(relattn, reading, tmp_path, model):
    (tmp_path / "terms.tsv").write_text("cat\tlöwin frau\n", encoding="utf-8")
    reading("\n".join(LINES).encode())
    lines = relattn("translate", model, "--terms", tmp_path / "terms.tsv").out.split("\n")[:-1]
    plain = bundle.read_bundle(model).translator().translate(LINES)
    for source, line, before in zip(LINES, lines, plain, strict=True):
        assert ("löwin frau" in line) == ("cat" in source)
        assert "cat" in source or line == before


def test_tags_are_kept(relattn, reading, model):
    reading(b"one <b>cat</b> sat\n{name}\n")
    lines = relattn("translate", model, "--keep_tags").out.split("\n")[:-1]
    (plain,) = bundle.read_bundle(model).translator().translate(["one cat sat"])
    assert lines[0].replace("<b>", "").replace("</b>", "") == plain
    assert lines[1] == "{name}"


def test_formats_and_alignments(relattn, reading, model):
    translator = bundle.read_bundle(model).translator()
    translator.aligning = True
    found = translator.n_best(LINES, TranslateOptions(n_best=2))
    expected = [(number, h) for number, of_line in enumerate(found, start=1) for h in of_line]
    assert any(h.alignment for _, h in expected)
    reading("\n".join(LINES).encode())
    result = relattn("translate", model, "--n_best", 2, "--align", "--format", "jsonl")
    rows = [json.loads(line) for line in result.out.split("\n")[:-1]]
    assert [(row["line"], row["translation"]) for row in rows] == [(number, h.text) for number, h in expected]
    assert [row["alignment"] for row in rows] == [" ".join(f"{a}-{b}" for a, b in h.alignment) for _, h in expected]
    assert [row["score"] for row in rows] == pytest.approx([h.score for _, h in expected], abs=1e-4)
    reading(b"")
    assert relattn("translate", model, "--format", "tsv") == (0, "line\tscore\tconfidence\ttranslation\n", "")
    reading(b"one cat sat")
    first = found[0][0]
    links = " ".join(f"{a}-{b}" for a, b in first.alignment)
    assert relattn("translate", model, "--align") == (0, f"{first.text} ||| {links}\n", "")


def test_score(relattn, reading, tmp_path, model):
    """An n-best list is scored as it was made, by its pieces and in sum."""
    translator = bundle.read_bundle(model).translator()
    src = [line for line in LINES if line.strip()] + [""]
    found = [best for (best,) in translator.n_best(src)]
    for name, lines in (("src", src), ("tgt", [best.text for best in found])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = ("--src", tmp_path / "src", "--tgt", tmp_path / "tgt")
    code, out, err = relattn("score", model, *files)
    assert (code, err) == (0, "")
    for line, best in zip(out.splitlines()[:-1], found, strict=False):
        penalty = ((5 + len(best.tokens) + 1) / 6) ** 0.6
        assert float(line) == pytest.approx(best.score * penalty, abs=2e-4)
    rows = [line.split("\t") for line in relattn("score", model, *files, "--tokens").out.splitlines()]
    assert [total for total, _ in rows] == out.splitlines()
    for (total, pieces), best in zip(rows, found, strict=True):
        named, log_probs = pieces.split(" ")[::2], pieces.split(" ")[1::2]
        assert named == [translator.tokenizer.vocabularies[1][i] for i in (*best.tokens, 2)]
        assert sum(map(float, log_probs)) == pytest.approx(float(total), abs=1e-4 * len(log_probs))


def test_pairs_that_cannot_be_scored(relattn, tmp_path, model):
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\n" + "x" * 20_000 + "\n")
    (tmp_path / "c").write_text("eins\n")
    of = {side: f"{tmp_path}/{side}" for side in "abc"}
    message = "target line 2 has 20,000 characters; at most 16,384 are read"
    assert_refused(relattn("score", model, "--src", of["a"], "--tgt", of["b"]), message)
    message = f"the two sides differ in length: {of['a']} has 2 lines, {of['c']} has 1"
    assert_refused(relattn("score", model, "--src", of["a"], "--tgt", of["c"]), message)


def test_confidences_are_calibrated_by_lines_that_are_scored(relattn, reading, text, tmp_path, model, finished):
    path = tmp_path / "bundle"
    shutil.copytree(model, path)
    assert bundle.read_bundle(path).translator().calibration == Calibration()
    files = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    before = relattn("evaluate", path, *files)
    assert relattn("evaluate", path, *files, "--calibrate") == before
    translator = bundle.read_bundle(path).translator()
    assert translator.calibration.bias is not None
    for side in ("src", "tgt"):
        (tmp_path / side).write_text(Path(text[f"valid_{side}"]).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    relattn("evaluate", path, "--src", tmp_path / "src", "--ref", tmp_path / "tgt", "--calibrate")
    assert bundle.read_bundle(path).translator().calibration == translator.calibration  # a blank line says nothing
    found = [best for (best,) in translator.n_best(LINES)]
    means = [found[0].score * ((5 + len(found[0].tokens) + 1) / 6) ** 0.6 / (len(found[0].tokens) + 1)]
    assert found[0].confidence == pytest.approx(confidence(means[0], translator.calibration), abs=1e-6)
    assert found[1].confidence == 1.0
    reading("\n".join(LINES).encode())
    rows = relattn("translate", path, "--format", "jsonl").out.split("\n")[:-1]
    assert [json.loads(row)["confidence"] for row in rows] == pytest.approx([h.confidence for h in found], abs=1e-4)
    assert bundle.read_bundle(f"{finished.out}/bundle").calibration.bias is not None  # after training, by itself


def test_calibrations_that_cannot_be(relattn, text, model, another):
    files = ("--src", text["valid_src"], "--ref", text["valid_tgt"], "--calibrate")
    assert_refused(relattn("evaluate", model, another, *files), "--calibrate is for one bundle")
    message = "--calibrate writes into the directory of a bundle whose translations are scored"
    assert_refused(relattn("evaluate", model, *files, "--by_position", 3), message)


@pytest.fixture(scope="module")
def another(model: str, finished: Recipe, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bundle of the same vocabulary, with other weights."""
    translator = bundle.read_bundle(model).translator()
    for parameter in translator.model.parameters():
        parameter.data = parameter.flip(0)
    path = tmp_path_factory.mktemp("another") / "bundle"
    bundle.save(path, model=translator.model, recipe=finished, tokenizer=translator.tokenizer, card="")
    return str(path)


def test_several_bundles_are_an_ensemble(relattn, reading, text, model, another):
    expected = translation.load(model, another).translate(LINES)
    assert expected not in [bundle.read_bundle(path).translator().translate(LINES) for path in (model, another)]
    reading("\n".join(LINES).encode())
    assert relattn("translate", model, another) == (0, "".join(f"{line}\n" for line in expected), "")
    pairs = list(read_parallel(text["valid_src"], text["valid_tgt"]))
    scores = score(translation.load(model, another).translate([src for src, _ in pairs]), [ref for _, ref in pairs])
    arguments = ("--src", text["valid_src"], "--ref", text["valid_tgt"])
    assert relattn("evaluate", model, another, *arguments) == (0, f"{scores}\n", "")


def test_bundles_that_make_no_ensemble(relattn, reading, tmp_path, model, finished, make_recipe):
    reading(b"one\n")
    config = Path(model, "config.yaml").read_text(encoding="utf-8")
    turned = tmp_path / "turned"
    shutil.copytree(model, turned)
    (turned / "config.yaml").write_text(config.replace("src_lang: en", "src_lang: fr"), encoding="utf-8")
    message = f"models of an ensemble must have the same languages, got en to de for {model} and fr to de for {turned}"
    assert_refused(relattn("translate", model, turned), message)
    recipe = make_recipe(tmp_path / "run", data={"vocab_size": 290})
    run.train(recipe, show=False)
    other = f"{recipe.out}/bundle"
    message = f"models of an ensemble must have the same tokenizer; those of {model} and {other} differ"
    assert_refused(relattn("translate", model, other), message)
    assert_refused(
        relattn("translate", model, tmp_path / "none"), f"{tmp_path}/none: no such directory; a bundle is a directory"
    )


def test_evaluate_on_the_embedded_corpus(relattn, model, monkeypatch):
    read: list[object] = []
    read_bundle = bundle.read_bundle
    monkeypatch.setattr(bundle, "read_bundle", lambda path: read.append(path) or read_bundle(path))
    result = relattn("evaluate", model, "--embedded", "long", "--lines", 2, "--beam_size", 1)
    assert (result.code, result.err) == (0, "")
    assert [line.split()[0] for line in result.out.splitlines()] == ["BLEU", "chrF", "items"]
    assert list(map(str, read)) == [model]


def test_average(relattn, tmp_path, finished):
    assert relattn("average", finished.out, "--last", 2, "--out", tmp_path / "mean") == (0, "", "")
    ours, theirs = (bundle.read_bundle(p).state for p in (tmp_path / "mean", Path(finished.out) / "bundle"))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.whole
def test_training_asks_no_network_and_leaves_the_home_alone(tmp_path, recipe_file):
    (tmp_path / "home").mkdir()
    script = """
import socket, sys
def refuse(*_, **__):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from relattn.translation.commands import main as cli
sys.exit(cli.main(["train", sys.argv[1], "--data.train_src=", "--data.train_tgt=", "--data.valid_src=",
                   "--data.valid_tgt=", "--data.embedded_lines=40", "--data.vocab_size=500"]))
"""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_", "MPL"))}
    environment = {**inherited, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(recipe_file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home").rglob("*")) == []
