"""`relattn analyze attention` and `relattn analyze positions`"""

from contextlib import ExitStack, nullcontext
from pathlib import Path

from relattn.translation.analysis import Part
from relattn.translation.commands.options import DeviceOptions, ReferenceText, SearchOptions, require_new_output
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


def positions(
    bundle: str,
    *,
    width: int,
    text: ReferenceText,
    out: str = "",
    picture: str = "",
    trained_length: int | None = None,
    device: DeviceOptions,
) -> None:
    """Measure by target position how well each token of a reference is predicted from the tokens before it.

    Nothing is translated (teacher forcing). The table has the percentage of tokens predicted correctly and the mean
    negative log-likelihood in nats per token. Its last row is the end of sentence.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        width: Number of target positions per row of the table.
        out: File to write the table to, as CSV.
        picture: PNG file to draw the percentage by position into.
        trained_length: Length of the longest target in training, in tokens; marked in the picture.
    """
    require(trained_length is None or bool(picture), "--trained_length requires --picture")
    require(trained_length is None or trained_length >= 1, f"trained_length must be at least 1, got {trained_length}")
    require(not picture or picture.endswith(".png"), f"picture must end in .png, got {picture}")
    require_new_output(out, [text.src, text.ref, picture], [bundle])
    require_new_output(picture, [text.src, text.ref], [bundle])

    from relattn.translation.analysis import positions as teacher_forcing
    from relattn.translation.files import output

    translator = device.load_bundle(bundle)
    pairs = text.pairs(translator)
    with ExitStack() as outputs:  # unwritable files are refused before anything is computed
        write, draw = (outputs.enter_context(output(Path(name))) if name else None for name in (out, picture))
        bins = teacher_forcing.by_position(translator, pairs, width=width)
        print(teacher_forcing.table(bins))
        if write:
            write(teacher_forcing.as_csv(bins).encode())
        if draw:
            draw(teacher_forcing.as_png({Path(picture).stem: bins}, trained=trained_length))
