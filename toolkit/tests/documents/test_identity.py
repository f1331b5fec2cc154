"""Texts and files of all kinds come back as they were from a translator that returns its source."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from relattn_mt.config import SearchConfig
from relattn_mt.documents.read import FORMATS
from relattn_mt.serve.limits import Limits
from relattn_mt.serve.routing import Router
from relattn_mt.translate.documents import translate_document
from relattn_mt.translate.options import DEFAULTS
from relattn_mt.translate.translator import Translator

from tests.support.document_files import LINE_ENDS, SPACES, Maker
from tests.support.engines import TextEngine
from tests.support.marked import Characters

COUNT = 120  # texts and files


def source(change: Callable[[str], str]) -> Translator:
    """Return a translator that returns its source after a change."""
    tokenizer: Any = Characters()
    return Translator(TextEngine(tokenizer, change), tokenizer, SearchConfig(beam_size=1))  # type: ignore[arg-type]


def translated(change: Callable[[str], str], inputs: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return the translations of texts, pages and files, each given with its kind."""

    async def run() -> list[Any]:
        router = Router({("en", "de"): source(change)}, Limits(waiting=100_000))

        async def one(kind: str, content: Any) -> Any:
            if kind.startswith("."):
                return (await router.document(f"a{kind}", content, "en", "de", DEFAULTS)).content
            (answer,) = await router.translate([content], ["en"], "de", DEFAULTS, html=kind == "html")
            return answer.ranked[0]

        return await asyncio.gather(*(one(*each) for each in inputs))

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


ARB = '{"@@locale":"en","a":"b {name}","@a":{"type":"String","x":["y"]},"c":"d"}'
VOICES = "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>one</v><v Bob>two"
ICU = "{N, plural, =0 {just now} other {<x id='1'/> ago}}"


def trans_unit(text: str, attributes: str = "") -> str:
    return f'<xliff version="1.2"><trans-unit{attributes}><source>{text}</source>#</trans-unit></xliff>'


FILES = [  # kind, content, and what capitals make of it
    (".json", '{"a":"<a href=1>One</a><a href=2>Two</a>"}', '{"a":"<a href=1>ONE</a><a href=2>TWO</a>"}'),
    (".json", '{"a":"<p>A.</p><p>b?</p>"}', '{"a":"<p>A.</p><p>B?</p>"}'),
    (".json", '{"a":"One<br>Two<br/>Three"}', '{"a":"ONE<br>TWO<br/>THREE"}'),
    (".md", "[One](a)[Two](b) three\n", "[ONE](a)[TWO](b) THREE\n"),
    (".md", "**[One](a)[Two](b)[Three](c)**\n", "**[ONE](a)[TWO](b)[THREE](c)**\n"),
    (".md", '=== "Tab one"\n    some text\n', '=== "Tab one"\n    SOME TEXT\n'),
    (".arb", ARB, ARB.replace("b {", "B {").replace('"d"', '"D"').replace('"en"', '"de"')),
    (".json", '{"@type":"Person","name":"some"}', '{"@type":"Person","name":"SOME"}'),
    (".jsonl", '{"text":"one"}\n\n{"text":"two"}\n', '{"text":"ONE"}\n\n{"text":"TWO"}\n'),
    (".xhtml", "<html><p>one<br/>two <b>s</b> a</p></html>", "<html><p>ONE<br/>TWO <b>S</b> A</p></html>"),
    (".xlf", trans_unit("One.\n two", ' xml:space="preserve"'), "ONE.\n TWO"),
    (".xlf", trans_unit("One.\n two"), "ONE. TWO"),
    (".xlf", trans_unit(f"{ICU} left"), f"{ICU} LEFT"),
    (".txt", "{n, select, a {x} other {y {z}}} left", "{n, select, a {x} other {y {z}}} LEFT"),
    (".txt", "hi <%= name %> and %FIRST_NAME% x", "HI <%= name %> AND %FIRST_NAME% X"),
    (".txt", "hi $t(key.a) and @:menu.file x", "HI $t(key.a) AND @:menu.file X"),
    (".txt", 'see [gallery id="3"] here', 'SEE [gallery id="3"] HERE'),
    (".txt", "one\\n two \\nthree", "ONE\\n TWO \\n THREE"),
    (".json", '{"a":"Read<a>this</a>now"}', '{"a":"READ<a>THIS</a>NOW"}'),
    (".json", '{"a":"<span>Open</span><span>Close</span>"}', '{"a":"<span>OPEN</span><span>CLOSE</span>"}'),
    (".json", '{"a":"%dh one{x}two [[a b|c]] <? x ?> %n"}', '{"a":"%dH ONE{x}TWO [[a b|c]] <? x ?> %n"}'),
    (".md", "Read[this](x)now the [house](x)s\n", "READ[THIS](x)NOW THE [HOUSE](x)S\n"),
    (".md", "One\n: two\n: three\n", "ONE\n: TWO\n: THREE\n"),
    (".html", "<html lang=en x=y><noscript>one</noscript>", "<html lang=de x=y><noscript>ONE</noscript>"),
    (".html", "<p>Read<a href=1>this</a>now", "<p>READ<a href=1>THIS</a>NOW"),
    (".vtt", VOICES, VOICES.replace("one", "ONE").replace("two", "TWO")),
    (".md", "a[^1]\n\n[^1]: the note\n", "A[^1]\n\n[^1]: THE NOTE\n"),
    (".md", "a[^1][^2]\n\n[^1]: one\n[^2]: two three\n", "A[^1][^2]\n\n[^1]: ONE\n[^2]: TWO THREE\n"),
    (".json", '{"a":"see <0>one</0>, {n}\'s"}', '{"a":"SEE <0>ONE</0>, {n}\'s"}'),
    (".txt", "don't {0}'s {name}'s house", "DON'T {0}'s {name}'s HOUSE"),
    (".xlf", trans_unit("<g>One</g><g>Two</g>"), "<g>ONE</g><g>TWO</g>"),
    (".xlf", trans_unit("a <g>b <g>One</g><g>Two</g></g> c"), "A <g>B <g>ONE</g><g>TWO</g></g> C"),
    (".xlf", trans_unit("One<x/>Two"), "ONE<x/>TWO"),
    (".txt", "see [[a|b c]] and $name, {First Name}", "SEE [[a|b c]] AND $name, {First Name}"),
    (".txt", "is <?php a ?> %n or %L1 of {% if x %}", "IS <?php a ?> %n OR %L1 OF {% if x %}"),
    (".txt", 'I :blobcat: say "%s" now', 'I :blobcat: SAY "%s" NOW'),
    (".html", "<a>one</a>/<a>two</a>|<a>three</a>", "<a>ONE</a>/<a>TWO</a>|<a>THREE</a>"),
    (".html", "a <b>red</b>/<i>green</i> house", "A <b>RED</b>/<i>GREEN</i> HOUSE"),
    (".md", "- [x](y)-[z](w) a\n", "- [X](y)-[Z](w) A\n"),
    (".json", '{"a":"<option>a</option><option>b</option>"}', '{"a":"<option>A</option><option>B</option>"}'),
    (".json", '{"a":"{f}, say [url=x.y]this here[/url]"}', '{"a":"{f}, SAY [url=x.y]THIS HERE[/url]"}'),
    (".json", r'{"a":"\"{f}\" is a house"}', r'{"a":"\"{f}\" IS A HOUSE"}'),
    (".txt", "the :count of [% a %] in <@a> to *|NAME|*", "THE :count OF [% a %] IN <@a> TO *|NAME|*"),
    (".txt", "hi $(name) and \\(name), [b]you[/b]", "HI $(name) AND \\(name), [b]YOU[/b]"),
    (".json", r'{"a":"one {x} \"a b\" %s"}', r'{"a":"ONE {x} \"A B\" %s"}'),
    (".json", r'{"a":"({n}) \"a b\", a: {n} \"a b\""}', r'{"a":"({n}) \"A B\", A: {n} \"A B\""}'),
    (".html", "<p><em>x<br><i>y a </i> </em> it", "<p><em>X<br><i>Y A </i> </em> IT"),
    (".jsonl", '{"a":\n"one"}\n[\n"two"]\n', '{"a":\n"ONE"}\n[\n"TWO"]\n'),
    (".json", '{"a":"f&uuml;r&nbsp;&amp; b","b":"don&apos;t"}', '{"a":"FÜR&nbsp;&amp; B","b":"DON\'T"}'),
    (".json", """["<a title='a&apos;b'>f&uuml;r</a>","a&x; b"]""", """["<a title='a&apos;b'>FÜR</a>","A&x; B"]"""),
    (".po", 'msgid "f&uuml;r"\nmsgstr ""\n', '#, fuzzy\nmsgid "f&uuml;r"\nmsgstr "FÜR"\n'),
    (".xlf", trans_unit("f&amp;uuml;r &amp;amp; a"), "FÜR &amp;amp; A"),
    (".xlf", trans_unit("<![CDATA[a <b>b</b>]]>"), "A &lt;b&gt;B&lt;/b&gt;"),
    (".xlf", trans_unit("a&lt;br/&gt;b &amp;nbsp; &lt;"), "A&lt;br/&gt;B &amp;nbsp; &lt;"),
    (".md", "---\n\none\n\n---\n\ntwo\n", "---\n\nONE\n\n---\n\nTWO\n"),
    (".md", "--- \r\n \r\none\r\n\r\n---\r\n", "--- \r\n \r\nONE\r\n\r\n---\r\n"),
    (".md", "---\none: two\n\nthree: x\n---\ntwo\n", "---\none: two\n\nthree: x\n---\nTWO\n"),
    (".md", "---\n\none: x\n---\n\ntwo\n", "---\n\none: x\n---\n\nTWO\n"),
    (".md", "+++\n\none = 2\n+++\n\ntwo\n", "+++\n\none = 2\n+++\n\nTWO\n"),
    (".md", '!!! note "No"\n\n    one\n\n    two\n', '!!! note "No"\n\n    ONE\n\n    TWO\n'),
    (".md", "{% hint %}\none\ntwo\n{% endhint %}\n", "{% hint %}\nONE TWO\n{% endhint %}\n"),
    (".md", "*[A]: one\n*[B]: two\n\none\n~ two\n", "*[A]: ONE\n*[B]: TWO\n\nONE\n~ TWO\n"),
]  # fmt: skip


def test_words_change_and_nothing_else() -> None:
    found = translated(str.upper, [(kind, content.replace("#", "").encode()) for kind, content, _ in FILES])
    for (kind, content, expected), got in zip(FILES, found, strict=True):
        wanted = content.replace("#", f"<target>{expected}</target>") if kind == ".xlf" else expected
        assert got.decode() == wanted


def test_the_command_gives_the_bytes_of_the_server() -> None:
    inputs = [(kind, Maker(seed).file(kind)) for seed, kind in enumerate(FORMATS)]
    for (kind, content), wanted in zip(inputs, translated(str.upper, inputs), strict=True):
        translator = source(str.upper)
        translator.src_lang, translator.tgt_lang = "en", "de"
        assert translate_document(translator, f"a{kind}", content, DEFAULTS).content == wanted, (kind, content)
