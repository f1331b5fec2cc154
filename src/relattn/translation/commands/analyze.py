"""`relattn analyze attention`"""

from pathlib import Path

from relattn.translation.analysis import Part
from relattn.translation.commands.options import DeviceOptions, SearchOptions, require_new_output
from relattn.translation.errors import require


def attention(
    bundle: str,
    sentence: str,
    *,
    out: str,
    part: Part | None = None,
    layer: int | None = None,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Show the attention of a sentence, with the content term and the relative term of each score apart.

    The sentence is translated, and the translation is printed.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        sentence: Sentence to translate.
        out: Output file: a .png with a picture of one layer, or a .json with the numbers of all layers.
        part: Part of the model in the picture: encoder, decoder or cross. By default encoder.
        layer: Layer in the picture, counted from 1. By default 1.
    """
    path = Path(out)
    require(path.suffix in (".png", ".json"), f"out must end in .png or .json, got {out}")
    require(path.suffix == ".png" or part is layer is None, "--part and --layer require a .png as --out")
    require_new_output(out, [], [bundle])

    from relattn.translation.analysis.attention import as_json, as_png, inspect
    from relattn.translation.files import output

    translator = device.load_bundle(bundle)
    with output(path) as write:
        inspection = inspect(translator, sentence, search.options(translator))
        picture = path.suffix == ".png"
        number = 1 if layer is None else layer
        write(as_png(inspection, part or "encoder", number) if picture else as_json(inspection).encode())
    print(inspection.translation)
