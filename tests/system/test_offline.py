"""Training uses no network, and writes nothing to the home directory."""

import os
import subprocess
import sys

from research.corpus import write_files

SCRIPT = """
import socket, sys

def refuse(*_, **__):
    raise AssertionError("the network was used")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from relattn_mt.commands import main as cli

sys.exit(cli.main(sys.argv[1:]))
"""
SMALL = ["--model.dim=12", "--model.heads=3", "--model.feed_forward_dim=20", "--model.encoder_layers=1"]
SMALL += ["--model.decoder_layers=1", "--train.steps=4", "--train.accelerator=cpu", "--train.threads=1"]
SMALL += ["--train.valid_every=2", "--data.vocab_size=500", "--out=run"]
SMALL += ["--data.train_src=text/train.en", "--data.train_tgt=text/train.de"]


def test_training_is_local(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    write_files(tmp_path / "text", lines={"train": 40})
    (tmp_path / "recipe.yaml").write_text("seed: 1\n", encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_", "MPL"))}
    environment = {**inherited, "HOME": str(home), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, "train", "recipe.yaml", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "bundle" / "model.safetensors").exists()
    assert list(home.rglob("*")) == []
