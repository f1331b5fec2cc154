"""Page that shows the attention of sentences: one HTML file, or a local server where one types a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from relattn_mt.support.errors import InputError, one_line
from relattn_mt.tokens.tokenizer import BYTE, SPACE_MARK
from relattn_mt.translate.options import DEFAULTS, TranslateOptions
from relattn_mt.translate.translator import Translator
from torch import Tensor

from research.attention import Inspection, Part, SelfView, inspect, numbers, view_as_data

LONGEST = 100  # source tokens of a sentence that is shown
_BYTES = re.compile(f"(?:{BYTE.pattern})+")


def attention_of(translator: Translator, line: str, options: TranslateOptions = DEFAULTS) -> dict[str, Any]:
    """Return what the page shows of a sentence. Raises InputError as `inspect` does."""
    return {"line": line, **as_data(inspect(translator, line, options, longest=LONGEST))}


def as_html(translator: Translator, sentences: Sequence[dict[str, Any]], *, asks: bool = False) -> str:
    """Return the page of some sentences, each a result of `attention_of`. It needs no other file.

    Args:
        translator: The translator, for its languages.
        sentences: The sentences.
        asks: Whether the page has a field for another sentence, which `serve` answers.
    """
    view = files("research.view")
    html, style, script = ((view / f"view.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    content = {"source": translator.src_lang, "target": translator.tgt_lang, "asks": asks, "sentences": sentences}
    data = json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")  # no text ends the element
    for name, part in (("/*style*/", style), ("/*script*/", script), ("/*data*/", data)):
        html = html.replace(name, part, 1)
    return html


def serve(page: str, answer: Callable[[str], dict[str, Any]], port: int) -> HTTPServer:
    """Return a server of a page on this machine, 127.0.0.1, that answers sentences with `answer`.

    Requests to other names than the address, as web pages of other sites could send them, are refused.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if self.headers["Host"] not in hosts:
                self.send_error(403)
            elif url.path == "/":
                self._send(page, "text/html")
            elif url.path == "/sentence":
                try:
                    content = answer(parse_qs(url.query).get("line", [""])[0])
                except InputError as error:
                    content = {"error": one_line(error)}
                self._send(json.dumps(content), "application/json")
            else:
                self.send_error(404)

        def _send(self, content: str, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.end_headers()
            self.wfile.write(content.encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", port), Handler)
    hosts = {f"{name}:{server.server_port}" for name in ("127.0.0.1", "localhost")}
    return server


def as_data(inspection: Inspection) -> dict[str, Any]:
    """Return what the page of an inspection shows: all layers of each part, and the pieces and words of their sides."""
    before, after, given = inspection.special
    source, target = _side(inspection.source, before, after), _side(inspection.target, given, 0)
    sides: dict[Part, tuple[Any, Any]] = {
        "encoder": (source, source), "decoder": (target, target), "cross": (source, _side(inspection.written, 0, 1))
    }  # fmt: skip
    return {
        "translation": inspection.translation,
        "parts": {
            part: {"across": across, "down": down, "layers": [_layer(each) for each in getattr(inspection, part)]}
            for part, (across, down) in sides.items()
        },
    }


def _layer(layer: SelfView | Tensor) -> dict[str, Any]:
    return view_as_data(layer) if isinstance(layer, SelfView) else {"weights": numbers(layer)}


def _side(pieces: Sequence[str], before: int, after: int) -> dict[str, Any]:
    """Return the pieces of a sequence, and its words, each with its range of pieces.

    Args:
        pieces: Pieces of the sequence.
        before: Number of special tokens at its beginning.
        after: Number of special tokens at its end.
    """
    end = len(pieces) - after
    words: list[dict[str, Any]] = []
    for i, piece in enumerate(pieces):
        special = not before <= i < end
        if special or not words or words[-1]["special"] or piece.startswith(SPACE_MARK):
            words.append({"begin": i, "special": special})
        words[-1]["end"] = i + 1
    for word in words:
        text = "".join(pieces[word["begin"] : word["end"]])
        word["text"] = text if word["special"] else _BYTES.sub(_decoded, text).strip(SPACE_MARK) or text
    return {"pieces": pieces, "words": words}


def _decoded(match: re.Match[str]) -> str:
    return bytes.fromhex(re.sub("[<>]|0x", "", match[0])).decode(errors="replace")
