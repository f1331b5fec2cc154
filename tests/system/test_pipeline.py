"""The pipeline in examples/pipeline, with Snakemake in a new environment. Needs the package index."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
from relattn_mt.training.journal import read_log

from tests.support.environments import ROOT, environment_with
from tests.support.processes import kill_family

SIZES = {"model.yaml": ("steps: 400", "steps: 60"), "student.yaml": ("steps: 400", "steps: 20")}
SIZES["Snakefile"] = ("lines=4000", "lines=400")


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """Directory with Snakemake and relattn-mt."""
    directory = environment_with(tmp_path_factory.mktemp("snakemake"), "snakemake==9.27.1")
    (directory / "relattn-mt").write_text(f'#!/bin/sh\nexec {directory}/python -m relattn_mt "$@"\n')
    (directory / "relattn-mt").chmod(0o755)
    return directory


def test_killed_pipeline_continues(tmp_path, programs):
    """Snakemake and its command are killed in the middle of the second training."""
    directory = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples/pipeline", directory)
    for file, (old, new) in SIZES.items():
        text = (directory / file).read_text()
        assert old in text
        (directory / file).write_text(text.replace(old, new))
    variables = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    variables["PYTHONPATH"] = f"{ROOT / 'library/src'}:{ROOT / 'toolkit/src'}:{ROOT}"

    def start(*flags: str) -> subprocess.Popen[str]:
        pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "env": variables}
        return subprocess.Popen([programs / "snakemake", "--cores", "1", *flags], cwd=directory, **pipes)

    def finish(process: subprocess.Popen[str]) -> str:
        _, err = process.communicate(timeout=1000)
        assert process.returncode == 0, err
        return err

    process, log = start(), directory / "forward/log.csv"
    while process.poll() is None and not (log.exists() and len(read_log(log)) >= 2):
        time.sleep(0.01)
    kill_family(process.pid)
    process.communicate()
    finished = {path: path.stat().st_mtime_ns for path in (directory / "log").iterdir() if path.stat().st_size}
    assert {path.stem for path in finished} == {"prepare", "reverse", "backtranslate"}
    finish(start("--unlock"))
    err = finish(start("--rerun-incomplete"))
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert [row.step for row in read_log(log)] == [20, 40, 60]
    assert err.count("step 20 ") == 1  # of the student; the training continued
    assert ctranslate2.Translator(str(directory / "ct2")).translate_batch([["1"]])
