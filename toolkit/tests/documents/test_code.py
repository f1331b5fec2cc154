"""Code, placeholders and keys stay as they are in each kind of text, and the words around them are translated."""

import json
import re
from html import escape

import pytest
from relattn_mt.documents.read import read_document
from relattn_mt.text.marked import Marked
from relattn_mt.text.patterns import literal_pattern
from relattn_mt.text.sentences import split
from relattn_mt.text.strip import strip
from relattn_mt.translate.glossary import Glossary

CODE = [
    "`npm install`",
    "`x`",
    "``git log``",
    "`a. B c`",
    "<code>close it. Then open it</code>",
    "`let's go`",
    "`%s`",
    "`one`",
    "```make test```",
    "<kbd>Enter</kbd>",
    "<kbd class='big'>Ctrl + S</kbd>",
    "<code>open door</code>",
    '<code class="x">a < b. C</code>',
    "<code>one <b>two</b> three</code>",
    "<samp>Not found.</samp>",
    "<var>file name</var>",
    "<tt>make all</tt>",
    "<key>F6</key>",
    "<keycap>Page Up</keycap>",
    "<cmd>ls home</cmd>",
    "<command>go home</command>",
    "<filename>my file</filename>",
    "<literal>yes please</literal>",
    "<envar>home dir</envar>",
    "<varname>my name</varname>",
]
PLACEHOLDERS = [
    "%title",
    "%site",
    "%recipient",
    "%id",
    "%user_name",
    "%Name",
    "%file_size",
    "@count",
    "%1$#@files@",
    "%#@items@",
    "%2$#@folders@",
    "% d",
    "%[1]d",
    "%d",
    "%1$s",
    "%(name)s",
    "%name%",
    "{name}",
    '[contact-form-7 id="1234" title="Contact form"]',
    "[contact-form-7]",
    '[contact-form-7 404 "Not found"]',
    "[my-button]",
    "[/my-button]",
    "[my_button]",
    "[my-button size=\"big\" text='read this']",
    '[gallery ids="1,2"]',
    "[gallery]",
    "[caption]",
    "[/caption]",
    "_",
    "__",
    "____",
    "[/x]",
    "[embed]",
    '[/my-box kind="end"]',
]
NAMES = ["ACCOUNT_CHANGE", "MAX_LINE_LENGTH", "file_name", "user_id_2", "Some_Class", "A_B", "x_y"]
# by the specifications of formats
FIELDS = [  # printf, Java, Python, Ruby
    *("%.*s", "%1$tY", "%tB", "%b", "%h", "%,d", "%(,.2f", "%1$,.2f", "%-5b", "%<tm", "%'d", "%(a)r", "%-20{name}"),
    *("%05.2f", "%#x", "%lld", "{0:>10}", "{name!r}", "{price:>8.2f}", "{0:yyyy-MM-dd}", "%<total>d", "#{user.name}"),
]
TEMPLATES = [  # ICU, i18next, Angular, Mustache, Jinja, Liquid, PHP
    "{count, plural, =0 {none} one {one file} other {# files}}",
    "{gender, select, male {He} other {They}}",
    *(
        "{d, date, ::yyyyMMMd}",
        "{{date, datetime}}",
        "$t(common:save)",
        "{{ price | currency }}",
        "{{{raw}}}",
        "{{> row}}",
    ),
    *("{% endif %}", "{%- if a -%}", "{# a note #}", "{{ 'a' | t: b: c }}", "<?= $x ?>", "<%- x -%>", "{!! $x !!}"),
    *("[(ngModel)]", '*ngIf="is open"', "@.lower:key", "@.upper:message.hello", "@:{'key'}", "@:(message.name)"),
    *("$user->name", "$row['name']", "@lang('home')", "@site-name", "%user-name", "@list.first", "!name", "%%title%%"),
    *("##name##", "@string/app_name", "@android:string/ok", "?attr/color", r"\u00A0", "%arg", r"\(user.name)", "%lf"),
]
COMMANDS = [  # LaTeX
    *(
        r"\ref{fig:a}",
        r"\cite[p. 3]{key}",
        r"\textbf{x}",
        r"\num{3}",
        r"\newline",
        r"\alpha",
        r"\href{a}{b}",
        r"\LaTeX{}",
    ),
    *(
        r"\begin{x}",
        r"\frac{1}{2}",
        r"\(sin x\)",
        r"\(dx\)",
        r"\(for all x \in A\)",
        "$x^2$",
        r"$\alpha$",
        r"\(a+b\)",
        r"\[a\]",
        "$$x$$",
        r"\(n\)",
        r"\[a, b\]",
        r"\(\sin x\)",
        r"\(ab = c\)",
    ),
]
ADDRESSES = [  # names in programs, paths, files, web, hashes, versions
    *(
        "menu.file.open",
        "com.example.app",
        "System.out.println",
        "getName()",
        "obj.run()",
        "std::vector",
        "a->b",
        "this->next",
        "my_node->next->prev",
    ),
    *("/usr/local/bin", "/home/me/file.txt", "~/Documents", "./run.sh", "../a/b", r"C:\Users\me", r"\\server\share"),
    *(
        "*.pdf",
        "file.txt",
        "package.json",
        "src.main.py",
        "Node.js",
        "example.com",
        "docs.example.org/a",
        "localhost:80",
        "org.junit.Test",
        "i18n.menu.what_is_new",
        "data:text/html,hi",
        "data:;base64,AAAA",
        "magnet:?xt=urn:btih:c12",
        "mailto:?subject=hi",
        "tel:0301234",
    ),
    *(
        "mailto:a@b.c",
        "tel:+49123",
        "urn:isbn:123",
        "ssh://a@b",
        "file:///a/b",
        "git@example.com:a/b.git",
        "10.0.0.1:80",
    ),
    *("d41d8cd98f00b204", "0xDEADBEEF", "sha256:abc123", "00:1A:2B:3C:4D:5E", "v1.0.0-rc.1", "2.0.0-beta.1"),
    "550e8400-e29b-41d4-a716-446655440000",
]
FORMS = [*CODE, *PLACEHOLDERS[:-1], *NAMES, *FIELDS, *TEMPLATES, *COMMANDS, *ADDRESSES]
WORDS = [
    "from 01.02.2003-today",
    "Choose File->Save",
    "[music]",
    "[he said]",
    "[sic]",
    "the [so-called] flat",
    "a [well-known] man",
    "my [ex-wife]",
    "a [hard-working] friend",
    "[laughter, off-screen]",
    "his [mother-in-law]",
    "the [sugar-free] cake",
    "a [self-made] house",
    "the [twenty-year-old] dog",
    "cannot open `this' or `that' here",
    "so ``called'' or ``named'' words",
    "don`t and can`t do it",
    "get 20 %off today",
    "50 % dem Preis",
    "one - two",
    "_word_",
    "<b>code</b>",
    "<option>Red</option>",
    "<menu>File</menu>",
    "a/b",
    "and/or/not",
    "e.g. this, i.e. that",
    "at 5 p.m.today",
    "word.Next word",
    "between $5 and $6 = a lot",
    "Hello!Again",
    "1/2/2024",
    "20 % better, 50% best",
    "facade, decade, 1234567",
    r"this \(see below\)",
    r"what \[that\] means",
    r"\(for me, it's a well-known house\)",
    r"\[sic!\] and \(or so\)",
    "wait.what.why",
    "Oh.well.okay",
    "no.please.don't",
    "tel:call me",
    "mailto:me or data:new or urn:old",
    "this is !important",
    "from home->work",
    "go home->work->bed",
    "he -> she",
    "A: B, U.S.A.",
    "so (really) and () too",
]
KEYS = [
    *("menu.file.open", "account.change.heading", "common:menu.open", "app.i18n.key-name", "index.html", "a.b"),
    *("ACCOUNT_CHANGE", "ACCOUNT_CHANGE_HEADING", "first_name", "errors.NOT_FOUND", "Some_Name", "MAX_2"),
    *(
        "fa-home",
        "fas fa-home",
        "icon-user",
        "btn btn-primary",
        "mdi-account-box",
        "bi bi-house",
        "glyphicon glyphicon-ok",
    ),
    *("application/json", "text/html", "image/svg+xml", "audio/*", "true", "false", "null", "undefined"),
    *("accountChange", "iPhone", "onClick()", "app.start()", "v1.2.3", "10px", "1.5rem", "300ms", "#fff", "#00FF7f"),
    *("rgb(1, 2, 3)", "yyyy-MM-dd", "HH:mm:ss", "DD.MM.YYYY", "MMM d, yyyy", "en-US", "de_DE", "mailto:a@b.c"),
    *(
        "data:image/png;base64,AAAA",
        "./img/logo",
        "../a/b.c",
        "/user/settings",
        ".btn",
        "--verbose",
        "-v",
        "app://home/x",
    ),
]
SENTENCES = [
    *("Open the file", "house", "e-mail", "up-to-date", "check-in", "sign-up", "and/or", "he/she", "audio/video"),
    *("OK", "CANCEL", "none", "yes", "True", "/month", "...more", "Hello.", "A, b", "Mr. Smith", "state-of-the-art"),
    *(
        "state.",
        "Home. Work",
        "No.",
        "I",
        "Add",
        "Dad",
        "bi-weekly",
        "text-only",
        "e.g. this",
        "the icon-bar",
        "no: yes",
    ),
]


def upper(text: Marked) -> Marked:
    return Marked(text.text.upper(), text.marks)


def strings_of(kind: str, text: str) -> str:
    """Return a file of a kind with a string."""
    if kind == "po":
        return f'msgid ""\nmsgstr ""\n\nmsgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n'
    if kind == "xlf":
        unit = f"<trans-unit id='1'><source>{escape('<i>' + text + '</i>', quote=False)}</source></trans-unit>"
        return f"<xliff version='1.2'><file><body>{unit}</body></file></xliff>"
    return json.dumps({"a": text}, ensure_ascii=False)


def filled(kind: str, content: str) -> str:
    """Return the string of a file whose texts were translated into capital letters."""
    document = read_document(f"a.{kind}", content.encode(), 10**6)
    result = str(document.fill([upper(text) for text in document.texts]))
    if kind == "po":
        found = re.findall(r"^msgstr (.*)$", result, re.MULTILINE)
        return str(json.loads(found[1]))
    if kind == "xlf":
        (target,) = re.findall(r"<target>(.*)</target>", result)
        return str(target).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")[3:-4]
    return str(json.loads(result)["a"])


@pytest.mark.parametrize("kind", ["json", "po", "xlf"])
@pytest.mark.parametrize("form", FORMS)
def test_in_strings(kind, form):
    assert filled(kind, strings_of(kind, f"Look at {form} now.")) == f"LOOK AT {form} NOW."
    assert filled(kind, strings_of(kind, f"Two: {form}, {form}")) == f"TWO: {form}, {form}"


@pytest.mark.parametrize("form", FORMS)
def test_in_text(form):
    """Each is one literal of one sentence, and so the tags of `keep_tags` are."""
    text = f"Look at {form} now."
    (sentence,) = split(Marked(text), "en", is_kept=True).sentences
    assert [tag.content.text for tag in strip(sentence, literal_pattern()).tags] == [form]


@pytest.mark.parametrize("kind", ["html", "md"])
def test_in_documents(kind):
    """Beside an element, in capital letters but for literals. A backslash in Markdown may escape a character."""

    def upper_words(text: Marked) -> Marked:
        parts = re.split(f"({literal_pattern().pattern})", text.text)
        return Marked("".join(part if i % 2 else part.upper() for i, part in enumerate(parts)), text.marks)

    forms = [form for form in FORMS if kind == "html" or not re.search(r"\\[(\[\\]", form)]
    line = {"html": "<p>{} {}, <b>{}</b>", "md": "{} {}, **{}**\n"}[kind]
    shown = [form if kind == "md" else escape(form, quote=False) for form in forms]
    content = "\n".join(line.format("see", form, "my friend") for form in shown)
    document = read_document(f"a.{kind}", content.encode(), 10**6)
    filled = str(document.fill([upper_words(text) for text in document.texts]))
    assert filled.split("\n") == "\n".join(line.format("SEE", form, "MY FRIEND") for form in shown).split("\n")


@pytest.mark.parametrize("text", WORDS)
def test_what_is_translated_in_text(text):
    assert not strip(Marked(f"one {text}, two"), literal_pattern()).tags


@pytest.mark.parametrize("kind", ["json", "po"])
def test_keys_stay(kind):
    """A string that is a key has no text, unlike one that begins or ends with it."""
    for key in KEYS:
        assert read_document(f"a.{kind}", strings_of(kind, key).encode(), 10**6).texts == [], key
    for text in SENTENCES:
        (only,) = read_document(f"a.{kind}", strings_of(kind, text).encode(), 10**6).texts
        assert only.text == text


@pytest.mark.parametrize(
    "form", ["{flat}", "%flat%", "`my flat`", "<code>flat</code>", "@flat", "https://a.b/flat", "MY_flat"]
)
def test_terms_of_a_glossary_are_not_those_of_literals(form):
    glossary = Glossary([(1, "flat", "Wohnung"), (2, "my flat", "meine Wohnung"), (3, "code", "Code")])
    assert glossary.find(f"Look at {form}.") == []
    assert glossary.find(f"Look at {form} and my flat, flat.") == ["meine Wohnung", "Wohnung"]
    assert glossary.find("code flat") == ["Code", "Wohnung"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (r"He said \"Good morning\".\nGo home.", [r"\"", r"\"", r"\n"]),
        (r"(\"One\", \"two\")", [r"\""] * 4),
        (r"One.\nTwo!\tThree", [r"\n", r"\t"]),
        (r"It is C:\new\table.", [r"C:\new\table"]),
        (r"It is new\table.", []),
        (r"M\"uller", []),
    ],
)
def test_escapes_of_strings(text, kept):
    assert [found[0] for found in literal_pattern().finditer(text)] == kept
