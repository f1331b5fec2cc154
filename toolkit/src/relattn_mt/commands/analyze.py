"""`relattn-mt analyze attention`"""

from contextlib import nullcontext
from pathlib import Path

from relattn_mt.commands.options import DeviceOptions, SearchOptions, require_new_output
from relattn_mt.support.errors import require


def attention(
    bundle: str,
    sentences: list[str] = [],  # noqa: B006
    *,
    out: str = "",
    serve: bool = False,
    port: int = 5001,
    search: SearchOptions,
    device: DeviceOptions,
) -> None:
    """Show the attention of sentences, with the content term and the relative term of each score apart.

    Each sentence is translated, and the translation is printed.

    Args:
        bundle: Directory of a bundle, or its name on the hub.
        sentences: Sentences to translate.
        out: Output file: an .html with an interactive view, or a .json with the numbers of all layers, of one sentence.
        serve: Show the view on a page of this machine, where sentences can be typed, until Ctrl-C.
        port: Port of that page.
    """
    path = Path(out)
    require(serve != bool(out), "give either --out or --serve")
    require(serve or path.suffix in (".html", ".json"), f"out must end in .html or .json, got {out}")
    require(serve or bool(sentences), "--out requires a sentence")
    require(serve or path.suffix == ".html" or len(sentences) == 1, "a .json has one sentence")
    require_new_output(out, [], [bundle])

    from relattn_mt.analysis import page
    from relattn_mt.analysis.attention import as_json, inspect
    from relattn_mt.support.files import output

    translator = device.load_model(bundle)
    options = search.options(translator)
    if path.suffix == ".json":
        with output(path) as write:  # an unwritable file is refused first
            inspection = inspect(translator, sentences[0], options)
            write(as_json(inspection).encode())
        print(inspection.translation)
        return
    with nullcontext() if serve else output(path) as write:
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
