"""Families of models in other versions of transformers, each in a new environment. Needs the package index.

PyTorch and what else fits come from this environment.
"""

import json
import os
import subprocess

import pytest

from tests.support.environments import ROOT, environment_with

CHECK = """
import json, tempfile, torch, transformers
from relattn.call import Call
from relattn.integrations import transformers as faster
from relattn.integrations.transformers import patching

def valid(x):  # without one half of the second sequence, which is padding for the most part
    half = x.shape[1] // 2 if x.dim() > 1 and len(x) == 2 else None
    return x if half is None else torch.cat([x[0], x[1, half:] if valid_last else x[1, :half]])

def tensors(outputs):
    outputs = [x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else [x] for x in outputs]
    return [valid(x) for output in outputs for x in output if isinstance(x, torch.Tensor)]

def results(family, model, inputs):  # of the calls that the family is checked with, and of a training step
    torch.manual_seed(3)
    with torch.no_grad():
        outputs = tensors(family.run(model, inputs))
    torch.manual_seed(3)
    model.zero_grad()
    loss = tensors([model(**inputs)])[0]  # or an output, where there is no loss
    (loss * torch.linspace(-1, 1, loss.numel()).view(loss.shape)).sum().backward()
    return outputs + [p.grad.clone() for p in model.parameters() if p.grad is not None]

def compare(name, ours, own):
    assert len(ours) == len(own), name
    for x, y in zip(ours, own):
        assert x.shape == y.shape, (name, x.shape, y.shape)
        assert float((x - y).abs().max()) <= 1e-4 * float(y.abs().max()) + 1e-5, (name, float((x - y).abs().max()))

torch.set_num_threads(1)  # several would wait for each other on a busy machine
calls, make_call = [0], Call.from_arguments
def counted(*arguments, **options):
    calls[0] += 1
    return make_call(*arguments, **options)
reasons, cases = {}, 0
for family in dict.fromkeys(patched.family for patched in patching._patched_classes().values()):
    reasons[family.name] = patching._mismatch_reason(family)
    if reasons[family.name] is not None:
        continue
    torch.manual_seed(1)
    model, inputs = family.make(), family.inputs()
    # SeamlessM4T's own adapter takes the first positions for the valid ones, and so reads padding on the left
    has_sides = "attention_mask" in inputs and family.name != "SeamlessM4Tv2"
    for padded_left in (False, True) if has_sides else (False,):
        # these two count the valid frames, and take as many first ones, wherever the mask has them
        valid_last = padded_left and family.name != "Parakeet"
        case = f"{family.name} {'left' if padded_left else 'right'}"
        given = dict(inputs)
        if padded_left:
            length = inputs["attention_mask"].shape[-1]
            names = [name for name, x in inputs.items() if "mask" in name or (name == "labels" and length in x.shape)]
            given |= {name: inputs[name].flip(list(range(1, inputs[name].dim()))) for name in names}
        own = results(family, model, given)
        Call.from_arguments, calls[0] = counted, 0
        with faster.enable(model):
            compare(case, results(family, model, given), own)
            assert calls[0] >= 2, case
            if hasattr(model, "save_pretrained"):
                with tempfile.TemporaryDirectory() as directory:
                    model.save_pretrained(directory)
                    again = type(model).from_pretrained(directory).eval()
            else:
                again = family.make()
                again.load_state_dict(model.state_dict())
        with faster.enable():
            compare(f"{case}, loaded", results(family, again, given), own)
        Call.from_arguments, cases = make_call, cases + 1
print(json.dumps([transformers.__version__, reasons, cases]))
"""


KEPT = {  # families that keep their own code, and the version that they need; None where a version has no such model
    "5.24.0": {},
    "5.23.0": {},
    "5.0.0": {
        **dict.fromkeys(("SamVision", "SamHQVision", "GotOcr2Vision"), "5.2"),
        **dict.fromkeys(("T5", "MT5", "Pop2Piano", "SwitchTransformers", "UMT5"), "5.15"),
        **dict.fromkeys(("Wav2Vec2Bert", "Wav2Vec2Conformer", "SeamlessM4T", "SeamlessM4Tv2", "WavLM"), "5.16"),
        **dict.fromkeys(("DeepseekOcr2SamVision", "UnlimitedOcrSamVision", "SLANeXtVision", "PPFormulaNetVision")),
    },
}


@pytest.mark.parametrize(("version", "cases"), [("5.24.0", 44), ("5.23.0", 44), ("5.0.0", 14)])
def test_families_agree_with_their_own_code_or_name_the_version_that_they_need(version, cases, tmp_path):
    python = environment_with(tmp_path, f"transformers=={version}") / "python"
    variables = os.environ | {"PYTHONPATH": str(ROOT / "library/src")}
    done = subprocess.run([python, "-c", CHECK], capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    installed, reasons, compared = json.loads(done.stdout.splitlines()[-1])
    assert installed == version
    kept = {name: reason for name, reason in reasons.items() if reason is not None}
    assert kept.keys() == KEPT[version].keys(), kept
    for name, since in KEPT[version].items():
        assert ("does not have this model" if since is None else f"must be {since} or later") in kept[name]
    assert compared == cases  # most families twice, with padding on the right and on the left
