"""Ray clusters of two nodes on this machine, in a new environment. Needs the package index.

A process that is killed in the middle loses no line, and the results are those without Ray.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import sysconfig

import pytest

from tests.support.environments import ROOT
from tests.translation.formats.bundles import make_bundle

VERSION = "2.60.0"
CLUSTER = """
import os, signal, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from relattn.translation.commands.main import main

def family(pid):
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(pid), *(each for child in " ".join(lists).split() for each in family(child))]

def kill(name, ready):
    while not ready():
        time.sleep(0.01)
    for pid in family(os.getpid()):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(name):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            return

killed = []
def start_killer(name, ready):
    threading.Thread(target=kill, args=(name, ready), daemon=True).start()

directory, bundle = map(Path, sys.argv[1:])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 1 << 27})
cluster.add_node(num_cpus=2, object_store_memory=1 << 27)
"""
SYNTHESIS = """
from relattn.translation import synthesis
synthesis.PART = 16
rules = ("--min_script", "null", "--max_ratio", "null", "--min_score", "null", "--n_best", "2")
def distill(out, *flags):
    command = ["distill", str(bundle), "--data", str(directory / "in.txt"), "--out", str(directory / out)]
    assert main([*command, *rules, *flags]) == 0
distill("plain")
start_killer(b"ray::_Worker", (directory / "ray/.relattn-preparing/part-00003").exists)
distill("ray", "--ray", cluster.address)
assert len(killed) == 1
files = [{path.name: path.read_bytes() for path in (directory / out).iterdir()} for out in ("plain", "ray")]
assert files[0] == files[1]
"""
DATA = """
import pyarrow.parquet as pq
from relattn.translation import BatchTranslator
ray.init(cluster.address, log_to_driver=False)
assert len(ray.nodes()) == 2
ray.data.DataContext.get_current().enable_progress_bars = False
lines = (directory / "in.txt").read_text().splitlines()
table = ray.data.from_items([{"id": i, "text": line} for i, line in enumerate(lines)]).repartition(40)
pool = ray.data.ActorPoolStrategy(size=2)
arguments = {"fn_constructor_args": (str(bundle),), "fn_constructor_kwargs": {"threads": 1}}
out = directory / "data"

class Killed(BatchTranslator):
    def __call__(self, batch):
        if 700 in batch["id"] and not (directory / "killed").exists():
            (directory / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)

table.map_batches(Killed, batch_size=16, num_cpus=1, compute=pool, **arguments).write_parquet(str(out))
assert (directory / "killed").exists()
rows = pq.read_table(out).sort_by("id").to_pylist()
want = BatchTranslator(str(bundle))({"text": lines})
assert [row["id"] for row in rows] == list(range(len(lines)))
assert [row["translation"] for row in rows] == want["translation"]
assert [row["warnings"] for row in rows] == want["warnings"]
"""
REFUSED = """
import contextlib, io
ray.init(cluster.address, log_to_driver=False)
ray.shutdown()
command = ["distill", str(bundle), "--data", str(directory / "in.txt"), "--out", str(directory / "refused")]
for flags, message in (
    (("--ray", "127.0.0.1:9"), "relattn: error: 127.0.0.1:9: no usable Ray cluster: "),
    (("--ray", cluster.address, "--threads", "3"), "the Ray cluster must have a machine with 3 free cores, got 2"),
    (("--ray", cluster.address, "--device", "meta"), "--ray runs on CPUs, got --device meta"),
):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert main([*command, *flags]) == 2
    assert message in err.getvalue(), err.getvalue()
    assert not (directory / "refused").exists()
    ray.shutdown()
"""

END = """
ray.shutdown()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    """Python with Ray and the packages of this environment."""
    directory = tmp_path_factory.mktemp("ray")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "fallback.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    install = [directory / "bin/python", "-m", "pip", "install", "--quiet", f"ray[data]=={VERSION}"]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(directory / "bin/python")


@pytest.mark.parametrize("script", [SYNTHESIS, DATA, REFUSED], ids=["synthesis", "data", "refused"])
def test_a_cluster_of_two_nodes(python, tmp_path, script):
    bundle, chance = make_bundle(tmp_path / "bundle"), random.Random(4)
    words = ["ein", "Hund", "zwei", "Katzen", "und", "ab"]
    (tmp_path / "in.txt").write_text("".join(" ".join(chance.choices(words, k=1 + i % 9)) + "\n" for i in range(1200)))
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, "-c", CLUSTER + script + END, tmp_path, bundle.path]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
