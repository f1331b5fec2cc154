"""Relative attention in models of Hugging Face's transformers, computed by the operator, in one line:

    from relattn.integrations import transformers as faster

    faster.enable()                     # all models of the families below, those there are and those to come
    faster.enable(model)                # one model
    with faster.enable(): ...           # for a while
    print(faster.report(model))         # what is replaced, and what is left alone and why

A model keeps its classes, its parameters and their names: what changes is how some modules compute. Whatever the
operator cannot express is left to the model's own code, by the module (`report` says why) or by the call.
"""

from relattn.integrations.transformers.patching import TESTED, disable, enable, report

__all__ = ["TESTED", "disable", "enable", "report"]
