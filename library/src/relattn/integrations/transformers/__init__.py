"""Faster relative attention for models from Hugging Face transformers.

    from relattn.integrations import transformers as faster

    faster.enable()                     # all models of the supported families, including those created later
    faster.enable(model)                # one model
    faster.enable(model, window=(128, 128))  # a sliding window: Parakeet, Wav2Vec2-BERT, Wav2Vec2-Conformer
    with faster.enable(): ...           # only inside the block
    print(faster.report(model))         # which modules use relattn, and why the others do not

A patched model keeps its classes, its parameters and their names. Only the forward pass of some modules changes. A
module whose attention relattn does not support keeps its own code, and `report` gives the reason. A call that needs
something relattn does not compute, such as attention weights, also runs the model's own code.
"""

from relattn.integrations.transformers.patching import disable, enable, report

__all__ = ["disable", "enable", "report"]
