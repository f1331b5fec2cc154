"""`relattn-mt quantize`"""

from relattn_mt.support.errors import require


def quantize(bundle: str, *, out: str, overwrite: bool = False) -> None:
    """Write a bundle with weights in int8, a quarter of the size. It translates in int8 without an option.

    Its translations are those of the original with --precision int8. Train and export the original: rounding
    cannot be undone. Weights have 7 bits, also those of a model that was imported in int8: this is faster with AVX2.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        out: Directory of the new bundle.
        overwrite: Replace a bundle that exists at the output path.
    """
    require(out, "out must name a directory")

    from relattn_mt.bundle import quantize_bundle, read_bundle
    from relattn_mt.hub import resolve

    print(quantize_bundle(read_bundle(resolve(bundle)), out, overwrite=overwrite))
