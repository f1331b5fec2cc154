"""`relattn-mt score`"""

from relattn_mt.commands.options import DeviceOptions


def score(
    bundle: str,
    *,
    src: str,
    tgt: str,
    src_lang: str = "",
    tgt_lang: str = "",
    tokens: bool = False,
    device: DeviceOptions,
) -> None:
    """Print the log-probability of each given translation, in nats, one per line.

    Args:
        bundle: Directory of a bundle, or name of a model: everyday-en-de, firefox:en-de, or org/name on the hub.
        src: File of source lines, plain or compressed.
        tgt: File of their translations, one per source line.
        src_lang: Source language, for a model of several languages. By default, the one of the bundle, or the only
            other one if tgt_lang is that language.
        tgt_lang: Target language. The default is chosen as for src_lang.
        tokens: Also print each token with its log-probability, after a tab each.
    """
    from relattn_mt.tokens.text_files import ParallelFiles

    translator = device.load(bundle, src_lang=src_lang, tgt_lang=tgt_lang)
    _, pieces = translator.tokenizer.vocabularies
    for scored in translator.score(ParallelFiles(src, tgt)):
        each = "\t".join(f"{pieces[i]} {log_prob:.4f}" for i, log_prob in scored)
        print(f"{sum(log_prob for _, log_prob in scored):.4f}" + (f"\t{each}" if tokens else ""))
