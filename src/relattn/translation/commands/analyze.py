"""`relattn analyze attention`"""

from contextlib import nullcontext
from pathlib import Path

from relattn.translation.analysis import Part
from relattn.translation.commands.options import DeviceOptions, SearchOptions, require_new_output
from relattn.translation.errors import require


def attention(
    bundle: str,
    sentences: list[str] = [],  # noqa: B006
    *,
    out: str = "",
    serve: bool = False,
    port: int = 5001,
    part: Part | None = None,
    layer: int | None = None,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Show the attention of sentences, with the content term and the relative term of each score apart.

    Each sentence is translated, and the translation is printed.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        sentences: Sentences to translate.
        out: Output file: an .html with an interactive view, a .png with a picture of one layer, or a .json with the
            numbers of all layers. The last two show one sentence.
        serve: Show the view on a page of this machine, where sentences can be typed, until Ctrl-C.
        port: Port of that page.
        part: Part of the model in the .png: encoder, decoder or cross. By default encoder.
        layer: Layer in the .png, counted from 1. By default 1.
    """
    path = Path(out)
    require(serve != bool(out), "give either --out or --serve")
    require(serve or path.suffix in (".html", ".png", ".json"), f"out must end in .html, .png or .json, got {out}")
    require(path.suffix == ".png" or part is layer is None, "--part and --layer require a .png as --out")
    require(serve or bool(sentences), "--out requires a sentence")
    require(serve or path.suffix == ".html" or len(sentences) == 1, "a .png or .json shows one sentence")
    require_new_output(out, [], [bundle])

    from relattn.translation.analysis import page
    from relattn.translation.analysis.attention import as_json, as_png, inspect
    from relattn.translation.files import output

    translator = device.load_bundle(bundle)
    options = search.options(translator)
    with nullcontext() if serve else output(path) as write:  # an unwritable file is refused first
        if write and path.suffix != ".html":
            inspection = inspect(translator, sentences[0], options)
            number = 1 if layer is None else layer
            picture = path.suffix == ".png"
            write(as_png(inspection, part or "encoder", number) if picture else as_json(inspection).encode())
            print(inspection.translation)
            return
        shown = [page.attention_of(translator, line, options) for line in sentences]
        html = page.as_html(translator, shown, asks=serve)
        if write:
            write(html.encode())
    for each in shown:
        print(each["translation"])
    if serve:
        server = page.serve(html, lambda line: page.attention_of(translator, line, options), port)
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
