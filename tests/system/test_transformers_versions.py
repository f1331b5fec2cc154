"""Families of models in other versions of transformers, each in a new environment. Needs the package index.

PyTorch and what else fits come from this environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig

import pytest

from tests.support.environments import ROOT

CHECK = """
import json, torch, transformers
from relattn.integrations.transformers import patching
torch.set_num_threads(1)
patched = patching._patched_classes().values()
results = {each.family.model.rpartition(".")[2]: patching._mismatch_reason(each.family) for each in patched}
print(json.dumps([transformers.__version__, results]))
"""
LEFT_ALONE = {  # families that keep their own code, or whose model a version does not have
    "5.24.0": set(),
    "5.23.0": set(),
    "5.0.0": {
        "SamVisionEncoder", "SamHQVisionEncoder", "GotOcr2VisionEncoder", "DeepseekOcr2SamVisionEncoder",
        "UnlimitedOcrSamVisionEncoder", "SLANeXtVisionEncoder", "PPFormulaNetVisionModel", "T5EncoderModel",
        "MT5EncoderModel", "Pop2PianoForConditionalGeneration", "SwitchTransformersEncoderModel", "UMT5EncoderModel",
        "Wav2Vec2BertModel", "Wav2Vec2ConformerModel", "SeamlessM4TSpeechEncoder", "SeamlessM4Tv2SpeechEncoder",
        "WavLMModel",
    },
}  # fmt: skip


@pytest.mark.parametrize("version", LEFT_ALONE)
def test_families_are_enabled_or_left_alone(version, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    (packages,) = tmp_path.glob("lib/python*/site-packages")
    (packages / "fallback.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    python = tmp_path / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", f"transformers=={version}"]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([python, "-c", CHECK], capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found, results = json.loads(done.stdout.splitlines()[-1])
    assert found == version
    assert {name for name, reason in results.items() if reason is not None} == LEFT_ALONE[version], results
    assert len(results) >= 20
