"""Texts and files of all kinds come back as they were from a translator that returns its source."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from relattn_mt.config import SearchConfig
from relattn_mt.documents.read import FORMATS
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.routing import Router
from relattn_mt.translate.documents import translate_document
from relattn_mt.translate.options import DEFAULTS
from relattn_mt.translate.translator import Translator

from testing.document_files import LINE_ENDS, SPACES, Maker, members_of
from testing.engines import TextEngine
from testing.marked import Characters

COUNT = 500  # texts and files


def source(change: Callable[[str], str]) -> Translator:
    """Return a translator that returns its source after a change."""
    tokenizer: Any = Characters()
    return Translator(TextEngine(tokenizer, change), tokenizer, SearchConfig(beam_size=1))  # type: ignore[arg-type]


def translated(change: Callable[[str], str], inputs: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return the translations of texts, pages and files, each given with its kind."""

    async def run() -> list[Any]:
        router = Router({("en", "de"): source(change)}, Limits(waiting=100_000))
        queues = [asyncio.create_task(queue.run()) for queue in router.queues]

        async def one(kind: str, content: Any) -> Any:
            if kind.startswith("."):
                return await router.document(f"a{kind}", content, "en", "de", DEFAULTS)
            (answer,) = await router.translate([content], ["en"], "de", DEFAULTS, html=kind == "html")
            return answer.ranked[0]

        try:
            return await asyncio.gather(*(one(*each) for each in inputs))
        finally:
            for queue in queues:
                queue.cancel()
            router.close()

    return asyncio.run(run())


def test_every_text_and_file_comes_back_equal() -> None:
    kinds = ["text", "html", *FORMATS]
    inputs, expected = [], []
    for seed in range(COUNT):
        kind, maker = kinds[seed % len(kinds)], Maker(seed)
        if kind.startswith("."):
            inputs.append((kind, maker.file(kind)))
            expected.append(Maker(seed).file(kind, is_filled=True))
        else:
            inputs.append((kind, maker.html() if kind == "html" else maker.text([*SPACES, *LINE_ENDS])))
            expected.append(inputs[-1][1])
    for (kind, content), wanted, got in zip(inputs, expected, translated(str, inputs), strict=True):
        assert got == wanted, (kind, content)


def test_all_words_are_translated_and_nothing_else() -> None:
    """Capitals of the words, in a file that is otherwise the same."""
    inputs, expected = [], []
    for kind, seed in itertools.product([".html", ".md", ".json", ".odt", ".odp", ".epub", ".po", ".xlf"], range(20)):
        inputs.append((kind, Maker(seed, is_exact=True).file(kind)))
        expected.append(Maker(seed, str.upper, is_exact=True).file(kind, is_filled=True))
    for (kind, content), wanted, got in zip(inputs, expected, translated(str.upper, inputs), strict=True):
        assert members(got) == members(wanted), (kind, content)


def test_the_command_gives_the_bytes_of_the_server() -> None:
    inputs = [(kind, Maker(seed).file(kind)) for kind, seed in itertools.product(FORMATS, range(3))]
    for (kind, content), wanted in zip(inputs, translated(str.upper, inputs), strict=True):
        translator = source(str.upper)
        translator.src_lang, translator.tgt_lang = "en", "de"
        assert translate_document(translator, f"a{kind}", content, DEFAULTS) == wanted, (kind, content)


def members(content: Any) -> Any:
    """Return the members of an archive; any other content as it is."""
    return members_of(content) if content.startswith(b"PK") else content
