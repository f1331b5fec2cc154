"""Kill trainings and translations at random moments, continue them, and compare them with complete ones.

Runs of one process and of two are killed with SIGKILL, to any one of their processes including the agent: during
imports, while data are prepared, between steps, while a checkpoint is written. A continued run must have the same bits
as one that was not killed, except for times. Runs of two processes must equal those of one to rounding.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from relattn_mt import bundle
from relattn_mt.config import DataConfig, ModelConfig, Recipe, TrainConfig, dump
from relattn_mt.training import checkpoints
from relattn_mt.training.train import train

from tests.support.bundles import tensors_of
from tests.support.environments import ROOT
from tests.support.processes import family, kill_family
from tests.support.training_states import assert_same, layout, loss_values, losses, state_of

KILLS_OF_ONE = int(os.environ.get("KILLS_OF_ONE", "10"))
KILLS_OF_TWO = int(os.environ.get("KILLS_OF_TWO", "20"))
KILLS_PER_RUN = 4
STEPS = 300
TOLERANCE = 1e-5  # relative, for losses with another number of processes, which sum in another order
ENDLESS = {"steps": 100_000, "warmup_steps": 100_000, "checkpoint_every": 100_000}  # no warning about word order
STARTED: list[subprocess.Popen[str]] = []  # runs whose end no test has seen
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(autouse=True)
def _kill_runs_of_a_failed_test() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            kill_family(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    STARTED.clear()


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> dict[str, str]:
    """Paths of training and validation text."""
    directory, chance = tmp_path_factory.mktemp("text"), random.Random(1)
    words = ["".join(chance.choices("abcdefghij", k=chance.randint(2, 6))) for _ in range(60)]
    paths = {}
    for split, count in (("train", 300), ("valid", 20)):
        lines = [chance.choices(words, k=1 + i % 12) for i in range(count)]
        for side, content in (("src", lines), ("tgt", [line[::-1] for line in lines])):
            path = directory / f"{split}.{side}"
            path.write_text("".join(" ".join(line) + "\n" for line in content))
            paths[f"{split}_{side}"] = str(path)
    return paths


@pytest.fixture(scope="session")
def make_recipe(text) -> Callable[..., Recipe]:
    """make_recipe(out, …): a recipe with dropout, for one process or two."""

    def make(out: Path, *, max_tokens: int = 60, **changes: Any) -> Recipe:
        settings = {
            **{"steps": STEPS, "warmup_steps": 50, "accumulate": 4, "learning_rate_factor": 0.03},
            **{"gradient_clip": 0.5, "accelerator": "cpu", "threads": 1},
            **{"log_every": 4, "valid_every": 60, "valid_bleu_lines": 5, "checkpoint_every": 10, "keep": 3},
            **{"average": 2, **changes},
        }
        model = ModelConfig(dim=32, heads=4, feed_forward_dim=64, encoder_layers=1, decoder_layers=1, clip=4)
        data = DataConfig(**text, vocab_size=300, max_tokens=max_tokens)
        return Recipe(out=str(out), model=model, data=data, train=TrainConfig(**settings))

    return make


def begin(run: Recipe, processes: int = 1, *, prefix: tuple[str, ...] = (), **environment: str) -> Any:
    """Start a run, or continue it, in a session of its own."""
    prefix = TORCHRUN if processes == 2 else prefix
    environment = {"OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120", **environment}
    out = Path(run.out)
    path = out.with_suffix(".yaml")
    path.write_text(dump(run))
    command = [*prefix, "-m", "relattn_mt", "train", str(path)]
    if (out / "recipe.yaml").exists():
        command.append("--resume")
    return launch(command, out.parent, **environment)


def launch(
    command: Sequence[str], directory: Path, *, program: str = sys.executable, **environment: str
) -> subprocess.Popen[str]:
    """Start Python, or a program, in a session of its own, with temporary files in the given directory."""
    pipe, variables = subprocess.PIPE, {**os.environ, "TMPDIR": str(directory), **environment}
    options = {"stdout": pipe, "stderr": pipe, "text": True, "start_new_session": True, "env": variables}
    STARTED.append(subprocess.Popen([program, *command], **options))
    return STARTED[-1]


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait until all processes of a run have ended, so that none has its output open. Return exit code and output."""
    out, err = process.communicate(timeout=300)
    STARTED.remove(process)
    return process.returncode, out, err


def finish(run: Recipe, processes: int = 1) -> None:
    code, out, err = end(begin(run, processes))
    assert (code, out) == (0, f"{run.out}/bundle\n"), err


def wait_for_step(process: subprocess.Popen[str], run: Recipe, step: int) -> None:
    """Wait until a step is in the log, or the run has ended."""
    log, deadline = Path(run.out) / "log.csv", time.monotonic() + 200
    while process.poll() is None and not (log.exists() and losses(run) and losses(run)[-1][0] >= step):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def content(run: Recipe) -> list[Any]:
    return [losses(run), state_of(run), tensors_of(bundle.read_bundle(Path(run.out) / "bundle"))]


def saved_step(run: Recipe) -> int:
    return checkpoints.step_of(checkpoints.list_checkpoints(Path(run.out) / "checkpoints")[-1])


def killed(process: subprocess.Popen[str], chance: random.Random) -> bool:
    """Kill one of the processes of a run, and wait for its end. Return False if the run had already ended."""
    if process.poll() is not None:
        end(process)
        return False
    os.kill(chance.choice(family(process.pid)), signal.SIGKILL)
    assert end(process)[0] != 0
    return True


@pytest.fixture(scope="session")
def whole(make_recipe, tmp_path_factory) -> Callable[..., tuple[Recipe, float]]:
    """whole(processes): a run that was not killed, and the seconds that it took."""
    directory = tmp_path_factory.mktemp("whole")

    @cache
    def run(processes: int) -> tuple[Recipe, float]:
        recipe, start = make_recipe(directory / f"{processes}"), time.monotonic()
        finish(recipe, processes)
        return recipe, time.monotonic() - start

    return run


@pytest.mark.parametrize(("processes", "kills"), [(1, KILLS_OF_ONE), (2, KILLS_OF_TWO)])
def test_killed_runs_are_bitwise_equal(tmp_path, make_recipe, whole, processes, kills):
    expected, seconds = whole(processes)
    chance, done, number = random.Random(processes), 0, 0
    while done < kills:
        number += 1
        run = make_recipe(tmp_path / f"run-{number}")
        for _ in range(min(KILLS_PER_RUN, kills - done)):
            process = begin(run, processes)
            if done % 2:
                wait_for_step(process, run, chance.randrange(STEPS))
                time.sleep(chance.uniform(0.0, 0.05))
            else:
                time.sleep(chance.uniform(0.0, seconds))
            if not killed(process, chance):
                break
            done += 1
        finish(run, processes)
        assert_same(content(run), content(expected))


def lose(process: subprocess.Popen[str]) -> None:
    """Kill all processes of a run at once, as if their machine were lost."""
    kill_family(process.pid)
    assert end(process)[0] == -signal.SIGKILL


def test_nodes_of_torchrun_continue_after_one_is_killed(tmp_path, make_recipe, whole):
    """Both are started again."""
    run = make_recipe(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    prefix = ("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "x")
    prefix += ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", "127.0.0.1")

    def start() -> list[Any]:
        first = begin(run, prefix=prefix)
        while first.poll() is None and not is_open(port):
            time.sleep(0.1)  # the first node keeps the store of the rendezvous
        return [first, begin(run, prefix=prefix)]

    first, second = start()
    wait_for_step(first, run, 50)
    lose(second)
    assert end(first)[0] != 0
    ends = [end(node) for node in start()]
    assert [code for code, *_ in ends] == [0, 0], ends
    assert f"{run.out}/bundle\n" in [out for _, out, _ in ends]
    assert_same(content(run), content(whole(2)[0]))
    assert loss_values(run) == pytest.approx(loss_values(whole(1)[0]), rel=TOLERANCE)


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


SLURM = {"scontrol": "echo 127.0.0.1", "srun": '"$@" & "$@" & wait $! && wait'}  # commands of a job of two nodes


def test_job_of_slurm_that_is_killed_and_requeued_continues(tmp_path, make_recipe, whole):
    run, bin = make_recipe(tmp_path / "run"), tmp_path / "bin"
    bin.mkdir()
    for name, script in {**SLURM, "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"'}.items():
        (bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin / name).chmod(0o755)
    sizes = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_CPUS_PER_TASK": "1"}
    variables = {"PATH": f"{bin}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "x", "SLURM_JOB_ID": "1", **sizes}
    (tmp_path / "run.yaml").write_text(dump(run))

    def submit() -> subprocess.Popen[str]:
        command = [str(ROOT / "deploy/slurm.sh"), str(tmp_path / "run.yaml"), run.out]
        return launch(command, tmp_path, program="sh", **variables)

    job = submit()
    wait_for_step(job, run, 50)
    lose(job)
    code, out, err = end(submit())
    assert (code, out) == (0, f"{run.out}/bundle\n"), err
    assert_same(content(run), content(whole(2)[0]))


SIGNALS = [(signal.SIGTERM, receiver) for receiver in ("agent", "group", "child")]  # a scheduler signals the group
SIGNALS += [(signal.SIGHUP, "agent"), (signal.SIGHUP, "group")]  # the end of a terminal
SIGNALS += [(signal.SIGINT, "group")]  # Ctrl-C


@pytest.mark.parametrize(("number", "receiver"), SIGNALS)
def test_signal_leaves_a_checkpoint_and_no_orphan(tmp_path, make_recipe, number, receiver):
    run = make_recipe(tmp_path / "run", **ENDLESS)
    process = begin(run, 2)
    wait_for_step(process, run, 8)
    pids = family(process.pid)
    if receiver == "group":
        os.killpg(process.pid, number)
    else:
        os.kill(pids[receiver == "child"], number)
    code, _, err = end(process)  # which waits for orphans
    assert code != 0
    assert err.count(f"stopped after step {saved_step(run)};") == 1


@pytest.mark.parametrize(("changes", "fact"), [({"init_from": "nowhere"}, "nowhere"), ({"keep": 10**9}, "the disk")])
def test_user_error_in_two_processes_is_one_line(tmp_path, make_recipe, changes, fact):
    """The first process finds it, before and after the data are prepared."""
    code, out, err = end(begin(make_recipe(tmp_path / "run", **changes), 2))
    assert (code != 0, out, err.count("relattn-mt: error: ")) == (True, "", 1), err
    assert fact in err


def test_two_processes_skip_the_steps_that_one_skips_in_float16(tmp_path, make_recipe):
    settings = {"precision": "fp16-mixed", "checkpoint_every": 6, "log_every": 1, "steps": 6, "average": 1}
    runs = [make_recipe(tmp_path / name, **settings) for name in ("one", "two")]
    for processes, run in enumerate(runs, start=1):
        finish(run, processes)
        (path,) = checkpoints.list_checkpoints(Path(run.out) / "checkpoints")
        state = checkpoints.load(path)
        state["scaler"]["scale"] = 2.0**32  # gradients overflow
        checkpoints.save(path.parent, state.pop("step"), state, keep=3)
        finish(replace(run, train=replace(run.train, steps=12)), processes)
    scalers = [state_of(run)["scaler"] for run in runs]
    assert scalers[0] == scalers[1]
    assert scalers[0]["scale"] < 2.0**32
    assert loss_values(runs[1]) == pytest.approx(loss_values(runs[0]), rel=1e-3)


def test_compiled_run_differs_by_rounding_only(tmp_path, make_recipe):
    settings = {"steps": 4, "log_every": 1, "valid_every": 4, "average": 1}
    one = make_recipe(tmp_path / "one", **settings)
    compiled = make_recipe(tmp_path / "compiled", **settings, activation_checkpointing=True, compile=True)
    train(one, show=False)
    finish(compiled, 2)
    assert loss_values(compiled) == pytest.approx(loss_values(one), rel=TOLERANCE)
    assert layout(state_of(compiled)["model"]) == layout(state_of(one)["model"])
