"""Files that refer to their own text: what refers to a text that was translated still does."""

import pytest
from relattn_mt.documents.read import read_document
from relattn_mt.text.marked import Marked

NEW = {"My house": "Mein Haus", "above": "oben", "The end": "Das Ende", "One": "Eins", "Two": "Zwei", "a": "b"}


def translated(content: str) -> str:
    document = read_document("a.md", content.encode(), 10**6)
    return str(document.fill([Marked(NEW.get(text.text, text.text), text.marks) for text in document.texts]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("- [My house](#my-house)\n\n## My house\n", "- [Mein Haus](#mein-haus)\n\n## Mein Haus\n"),
        ("# My house #\n\n[above](#my-house)\n", "# Mein Haus #\n\n[oben](#mein-haus)\n"),
        ("# One\n\n# One\n\n[above](#one-1)\n", "# Eins\n\n# Eins\n\n[oben](#eins-1)\n"),
        ("# One\n\n# Two\n\n[a](#two) [a](#one)\n", "# Eins\n\n# Zwei\n\n[a](#zwei) [a](#eins)\n"),
        ("[above](#my-house 'x')\n\n# My house\n", "[oben](#mein-haus 'x')\n\n# Mein Haus\n"),
        ("[above][x]\n\n[x]: #my-house\n\n# My house\n", "[oben][x]\n\n[x]: #mein-haus\n\n# Mein Haus\n"),
        ('<a href="#one">x</a>\n\n# One\n', '<a href="#eins">x</a>\n\n# Eins\n'),
        ("# One\r\n\r\n[above](#one)\r\n", "# Eins\r\n\r\n[oben](#eins)\r\n"),
        ("# One\n\n[above](b.md#one) [a](#other)\n", "# Eins\n\n[above](b.md#one) [a](#other)\n"),
        ("```sh\n# One\n```\n\n# One\n\n[above](#one)\n", "```sh\n# One\n```\n\n# Eins\n\n[oben](#eins)\n"),
    ],
)
def test_links_to_headings_of_markdown_follow_them(content, expected):
    assert translated(content) == expected


@pytest.mark.parametrize(
    "line",
    [
        "import Tabs from '@theme/Tabs';",
        'import {a, b} from "./a b"',
        "import './one.css';",
        "export const name = 'my friend';",
        "export default One;",
        "export function One() { return 'my house'; }",
        "export {a};",
        "export * from 'a';",
    ],
)
def test_code_of_mdx_stays(line):
    for content in (f"{line}\n\nOne\n", f"{line}\n{line}\n\nOne\n", f"One\n\n{line}\n"):
        document = read_document("a.md", content.encode(), 10**6)
        assert [text.text for text in document.texts] == ["One"]
        assert document.fill([Marked("Eins")]) == content.replace("One\n", "Eins\n")
    for text in ("import the book from here", "Export const is a word", "export a house"):
        assert [each.text for each in read_document("a.md", f"{text}\n".encode(), 10**6).texts] == [text]
