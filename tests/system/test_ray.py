"""Ray clusters of two nodes on this machine, in a new environment. Needs the package index.

A process that is killed in the middle loses no line, and the results are those without Ray. A server loses no request
if its client sends those again that get status 500.
"""

import os
import random
import subprocess

import pytest

from tests.support.environments import ROOT, environment_with
from tests.support.foreign_bundles import make_bundle

VERSION = "2.60.0"
CLUSTER = """
import os, random, signal, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster

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
DATA = """
import pyarrow.parquet as pq
from relattn_mt import load
ray.init(cluster.address, log_to_driver=False)
assert len(ray.nodes()) == 2
ray.data.DataContext.get_current().enable_progress_bars = False
lines = (directory / "in.txt").read_text().splitlines()
table = ray.data.from_items([{"id": i, "text": line} for i, line in enumerate(lines)]).repartition(40)
pool = ray.data.ActorPoolStrategy(size=2)
out = directory / "data"

class Translate:
    def __init__(self):
        self.translator = load(str(bundle), threads=1)

    def __call__(self, batch):
        if 700 in batch["id"] and not (directory / "killed").exists():
            (directory / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {**batch, "translation": self.translator.translate(batch["text"].tolist())}

table.map_batches(Translate, batch_size=16, num_cpus=1, compute=pool).write_parquet(str(out))
assert (directory / "killed").exists()
rows = pq.read_table(out).sort_by("id").to_pylist()
assert [row["id"] for row in rows] == list(range(len(lines)))
assert [row["translation"] for row in rows] == load(str(bundle)).translate(lines)
"""
SERVE = """
import json, socket, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
import ray_serve
from ray import serve

ray.init(cluster.address, log_to_driver=False)
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(ray_serve.app(ray_serve.Options(models=str(bundle), threads=1, least=2, most=2)))
failures, answers = [], []

def ask(line):
    body = json.dumps({"q": line, "source": "en", "target": "pt_BR"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/translate", body, {"Content-Type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["translatedText"]
        except urllib.error.HTTPError as error:
            failures.append(error.code)
            time.sleep(0.2)

def send(seed):
    draw = random.Random(seed)
    while time.monotonic() < end:
        line = draw.choice(lines)
        assert ask(line) == want[line]
        answers.append(line)

def running():
    return serve.status().applications["default"].deployments["relattn"].replica_states.get("RUNNING")

lines = sorted({*(directory / "in.txt").read_text().splitlines()})[:100]
want = {line: ask(line) for line in lines}
assert failures == []
end = time.monotonic() + 20
start_killer(b"ray::ServeReplica", lambda: len(answers) > 200)
with ThreadPoolExecutor(20) as pool:
    list(pool.map(send, range(20)))
assert len(killed) == 1
assert {*failures} <= {500, 503} and len(failures) <= 20
while running() != 2:
    time.sleep(0.5)
assert ask(lines[0]) == want[lines[0]]
serve.shutdown()
"""

END = """
ray.shutdown()
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    """Python with Ray and the packages of this environment."""
    return str(environment_with(tmp_path_factory.mktemp("ray"), f"ray[data,serve]=={VERSION}") / "python")


SCRIPTS = {"data": DATA, "serve": SERVE}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_cluster_of_two_nodes(python, tmp_path, script):
    bundle, chance = make_bundle(tmp_path / "bundle"), random.Random(4)
    words = ["ein", "Hund", "zwei", "Katzen", "und", "ab"]
    (tmp_path / "in.txt").write_text("".join(" ".join(chance.choices(words, k=1 + i % 9)) + "\n" for i in range(1200)))
    variables = os.environ | {"PYTHONPATH": f"{ROOT}/deploy", "RAY_USAGE_STATS_ENABLED": "0"}
    variables |= {"RAY_raylet_start_wait_time_s": "200", "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}  # if it is busy
    command = [python, "-c", CLUSTER + script + END, tmp_path, bundle.path]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
