"""Test whether a difference in BLEU is significant."""

from collections.abc import Sequence

from relattn_mt.evaluation import require_pairs

_SAMPLES = 1000  # bootstrap samples


def paired_bootstrap(hypotheses: Sequence[str], other_hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the p-value of a difference in BLEU: sacreBLEU's paired bootstrap with 1,000 samples.

    Args:
        hypotheses: Translations of one system.
        other_hypotheses: Translations of the other system.
        references: One per translation.

    Raises:
        InputError: The numbers of translations and references differ, or are 0.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest, Result

    for lines in (hypotheses, other_hypotheses):
        require_pairs(lines, references)
    if list(hypotheses) == list(other_hypotheses):
        return 1.0  # sacreBLEU would return 1 / 1,001
    systems: list[tuple[str, Sequence[str]]] = [("", hypotheses), ("other", other_hypotheses)]
    test = PairedTest(systems, {"BLEU": BLEU(references=[list(references)])}, None, "bs", _SAMPLES)
    result = test()[1]["BLEU"][1]
    assert isinstance(result, Result)
    assert result.p_value is not None
    return result.p_value
