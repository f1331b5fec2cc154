"""Multi30k's test2016 on two scales: sacreBLEU's, cased, on text as it is; and that of the figures published for it.

Those are of lower-cased Moses tokens, BLEU of up to four of them without smoothing, as fairseq counts it: the output
published with 41.02 (README-baseline.md of github.com/LividWo/Revisit-MMT) has a reference of 12,103 tokens, as many as
sacremoses makes of test2016.de; ours are printed for comparison.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU

from relattn.translation import load
from relattn.translation.data.text_files import read_parallel
from relattn.translation.evaluation import score


class Published(NamedTuple):
    """A score on the scale of the published figures."""

    bleu: float
    signature: str
    tokens: int  # of the references


def published(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Published:
    """BLEU of lower-cased Moses tokens of `language`; both sides are text as it is, a line a sentence."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer(language)

    def tokens(lines: Sequence[str]) -> list[str]:
        return [tokenizer.tokenize(line.lower(), return_str=True, escape=False) for line in lines]

    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    of_references = tokens(references)
    found = bleu.corpus_score(tokens(hypotheses), [of_references])
    return Published(found.score, str(bleu.get_signature()), sum(len(line.split()) for line in of_references))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi30k", description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE", help="the model; several are an ensemble")
    parser.add_argument("--src", default="data/multi30k/test2016.en")
    parser.add_argument("--ref", default="data/multi30k/test2016.de")
    parser.add_argument("--language", default="de", help="of the references")
    arguments = parser.parse_args()
    pairs = list(read_parallel(arguments.src, arguments.ref))
    references = [reference for _, reference in pairs]
    translations = load(*arguments.bundles).translate([source for source, _ in pairs])
    print(score(translations, references))
    scale = published(translations, references, arguments.language)
    print(f"lower-cased Moses tokens: BLEU {scale.bleu:.2f}  {scale.signature}  {scale.tokens:,} of the references")


if __name__ == "__main__":
    main()
