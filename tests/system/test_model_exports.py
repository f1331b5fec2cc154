"""Exports of enabled models of every family: right at all lengths, or as without relattn. Ten seconds each."""

import pytest

from library.tests.integrations.test_transformers import FAMILIES
from tests.support.model_exports import EXPORTERS, outcome

NOT_RIGHT = {  # with transformers 5.23 and PyTorch 2.13; docs/models.md has the same table
    ("switch", "torch.jit.trace"): "wrong",
    ("switch", "torch.export"): "not exported",
    ("switch", "ONNX"): "not exported",
    ("switch", "ONNX, dynamo=False"): "wrong",
}


@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask:UserWarning")  # in WavLM's own code
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", FAMILIES)
def test_exports_of_enabled_models_run_their_own_code(name, exporter):
    """Where the model's own code does not export rightly, the enabled model does the same."""
    result = outcome(name, exporter, enabled=True)
    assert result == NOT_RIGHT.get((name, exporter), "right")
    assert result == "right" or result == outcome(name, exporter, enabled=False)
