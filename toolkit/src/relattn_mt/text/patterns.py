"""Patterns of what is not translated in a text: tags of markup, numbers with a unit, and literals.

Literals are code, placeholders (`{name}`, `%s`, `%(n)d`), web and e-mail addresses, handles (`@name`), hashtags, emoji
and other symbols, also by name (`:smile:`), runs of a sign (`____`), long numbers and identifiers.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

UNITS = (
    "km/h|m/s|km|cm|mm|nm|m|ft|mi|kg|mg|g|lb|oz|ml|cl|l|kB|MB|GB|TB|Hz|kHz|MHz|GHz|kWh|kW|MW|W|mV|V|mA|A|dB|px|pt"
    "|°C|°F|°|%|‰|€|£|¥|\\$"
)
_NUMBER = r"\d+(?:[.,]\d+)*"
# Of 8 digits, a row of 30 numbers, an identifier (capital letters with 4 digits, or a UUID), an address such as
# 192.168.0.1 that is no German number, or a version such as v2.0.
_LONG_NUMBER = (
    r"(?<![\w.,-])(?:\d{8,}|\d++(?:[^\w\n]{1,3}+\d++){29,}|(?=[A-Z0-9_-]*[A-Z])(?=(?:[A-Z_-]*\d){4})[A-Z0-9][A-Z0-9_-]{6,}[A-Z0-9]"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
    r"|(?!\d+(?:\.\d{3}){3}(?!\d))\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|v\d+(?:\.\d+)+(?:-\w+)?)(?!\w|[.,]\d)"
)
# Arrows, technical and other symbols, emoji; and what may follow an emoji: a variant, a skin colour, a joined emoji.
_SYMBOLS = "\u2190-\u21ff\u2300-\u23ff\u25a0-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
# Other characters than these, and brackets, only belong to a web address if it continues after them.
_INSIDE = r"[\w/#=&+~-]"
_BRACKETED = r"\([^\s<>\"()]*+\)|\{[^\s<>\"{}]*+\}|\[[^\s<>\"\[\]]*+\]"
WEB_ADDRESS = (
    r"(?:\b(?:https?|s?ftp|file|git|ssh|wss?)://|www\.)"
    rf"(?:[^\s<>\"\w/#=&+~()\[\]{{}}-]*+(?:{_INSIDE}|{_BRACKETED}|[(\[{{](?={_INSIDE})))++"
)
_NESTED = r"[^{}]"
for _ in range(5):  # levels of braces, as in messages of ICU
    _NESTED = rf"(?:[^{{}}]|\{{{_NESTED}*+\}})"
_FLAGS = r"[-+#0,(']*+"
_FIELD = r"%(?:\d+\$|\([\w.-]+\)|<\w+>)?[-+#0]*+(?:\*|\d+)?(?:\.\d+)?(?:hh?|ll?|[Lqjzt])?"  # of printf
_CODE_NAMES = "code|kbd|samp|var|tt|key|keycap|cmd|command|filename|literal|envar|varname"
# elements whose text is kept
CODE = tuple(rf"<{name}(?:\s[^<>]*)?(?<!/)>(?:(?!</?{name}[\s>])[^\0])*+</{name}>" for name in _CODE_NAMES.split("|"))
_QUOTED = r"\"[^\"]*\"|'[^']*'|\d+"
# Words with hyphens, as in [so-called]
_COMPOUND = (
    "(?:so|well|self|ex|non|semi|co|re|pre|post|anti|half|much|long|short|high|low|old|new|full|part|mid|all|over|under)"
    r"(?:-[a-z]+)+|[a-z]+(?:-[a-z]+)*-(?:[a-z]+ed|[a-z]+ing|[a-z]+able|in|on|up|off|out|to|by|the|of|and|like|free|old|law)"
    "(?:-[a-z]+)*"
)
_S = "(?:['’]s(?!\\w))?"  # of a possessive, which stays with its placeholder
# Commands of LaTeX: those whose arguments are not text, and other names, but not \n, \r or \t before a word
_LATEX = (
    r"(?:(?:page|eq|auto)?ref|cite\w*|label|url|begin|end|input|include\w*|num|[hv]space|usepackage)\*?(?:\[[^\[\]]*\])?"
    r"\{[^{}]*\}|(?:text(?:bf|it|tt|sc|rm)|newline|newpage|noindent|times|theta|tau|title|today|rightarrow)(?![A-Za-z])"
    r"|(?![nrt])[A-Za-z]{2,}\*?"
)
# A formula does not consist of words alone. Words are three small letters that are not the name of a function, or two
# times two letters.
_FUNCTION = (
    r"(?!(?:sinh?|cosh?|tanh?|coth?|sech?|arc(?:sin|cos|tan)|log|ln|exp|lim|max|min|sup|inf|det|arg|deg|dim|gcd|ker|mod|sgn"
    r"|grad|rank|span|diag|trace)\b)"
)
_NO_WORDS = (
    r"(?!(?=[\w\s,;.!?'’-]*+\\[)\]])"
    rf"[^\\]*?\b{_FUNCTION}(?:[a-zà-ÿ]{{3}}|[a-z]{{2}} {_FUNCTION}[a-z]{{2}}))"
)
# Words between dots, in place of spaces
_SAID = (
    "(?i:wh(?:at|y|en|ere|o)|how|and|but|then|so|please|really|just|yes|no|okay?|oh|well|you|we|they|it|i)(?![\\w-])"
)
_SUFFIXES = (
    "txt|html?|json|ya?ml|toml|ini|cfg|conf|py|jsx?|tsx?|css|cpp|java|rb|php|sh|md|csv|tsv|xml|xlf|pdf|docx?|xlsx?|pptx?"
    "|od[tsp]|png|jpe?g|gif|svg|webp|exe|dll|zip|gz|tar|log|sql|srt|vtt|mp[34]|wav"
)
_DOMAINS = r"com|org|net|io|dev|edu|gov|de|co\.uk"
_LITERALS = (
    *CODE,
    # Code in backticks, which are also quotation marks: `this', ``this''
    r"```(?:(?!```)[^\0])++```|(?<!`)``(?!`)(?:(?!``|'')[^\n])++``(?!`)",
    r"(?<![\w`])`(?![\s`])[^`\n]*[^`\s]`(?=$|[\s.,;:!?)\]}\"'…»”’/<-])",
    # Java, Python, Ruby, Yoast
    rf"(?<![\d%])%(?:\d+\$|<)?{_FLAGS}\d*(?:\.(?:\d+|\*))?(?:t[A-Za-z]|[bhBSdsfge])(?!\w)|%\(\w+\)[a-zA-Z](?!\w)",
    r"%-?\d+\{\w+\}|%%\w+%%|##\w+##",
    r"(?<![\w@.])@(?:\.[a-z]+)?:(?:\{'[^'{}]*'\}|\([\w.]+\)|[\w.]+\w)",  # Vue
    r"\[\([\w.]+\)\]|\*ng[A-Z]\w*=\"[^\"]*\"",  # Angular
    r"(?<![\w@])[@?](?:[a-z]+:)?[a-z]+/[a-z]\w*(?:\.\w+)*|\\u[0-9A-Fa-f]{4}",  # Android
    r"(?<![\w@%])[@%][A-Za-z]\w*(?:[.-][a-z]\w*)+|(?<![^\s(])!(?!important(?!\w))[a-z]\w{2,}",  # Drupal
    r"\$\w+(?:->\w+|\[(?:'\w+'|\d+)\])+|(?<![\w@])@[a-z]+\('[^'()]*'\)",  # PHP
    rf"(?<![\w:\\.])\\(?:{_LATEX})",
    r"<%(?:(?!<%|%>).)*+%>|<\?(?:(?!<\?|\?>).)*+\?>|\[%[^\[\]]*%\]|</?[#@][a-z][^<>]*>",  # templates, PHP
    r"[$\\]\([\w.]+\)|\$t\([^()]*\)|@:[\w.]+\w|(?<![^\s(]):[a-z][a-z_]+(?![\w:])",  # Swift, i18next, Vue, Laravel
    rf"\[(?!{_COMPOUND}\])/?[a-z]\w*(?:[-_]\w+)+(?:\s+(?:{_QUOTED}))*\s*/?\]|\[/[a-z][\w-]*\]",  # WordPress
    r"\[(?:gallery|caption|embed|playlist|audio|video)\]",
    r"\[[\w-]+ [\w-]+=[^\[\]]*\]|\[\[[^\[\]\n]*\]\]|\[_\d+\]|\*\|\w+\|\*",  # WordPress, links of wikis, Perl, Mailchimp
    r"\[/?(?:[biusq]|url|img|quote|code|color|size|list|center|\*)(?:=[^\[\]]*)?\]",  # of forums
    # ends of lines and quotation marks that were escaped
    r"(?<=[\s.!?…;,])\\[nrt](?=\w|\s|$)|(?<![:\\])\\[nrt](?=\s|$)|(?<![^\s(])\\\"(?=\w)|(?<=[\w.,;!?…])\\\"(?!\w)",
    rf"(?:[$%#]\{{|(?<!\w)\{{|\{{(?=[{{%#])){_NESTED}*+\}}{_S}|\{{[^{{}}\s]*\}}{_S}",  # ICU, many templates
    r"(?<![\w$])(?:\$(?:[a-z_]\w+|[A-Z_]{4,}(?!\w)))+|(?<![\w%])(?:%[A-Za-z_]\w+%)+(?!\w)",  # variables
    # Apple's variants, Drupal, Go, printf
    r"%(?:\d+\$)?#@\w+@|(?<![\w%])(?<!\d[ \u00a0])%(?:[A-Za-z]\w{2,}|id|ip|by|to)(?![\w%])|%\[\d+\][a-z]",
    r"(?<![\d%])(?<!\d )% [df](?![\w'’])",
    rf"%%|(?<![\d%]){_FIELD}(?:[dsiufg@](?![^\W_]{{3}}|\d)|[oxXeEFGaAcpn](?!\w)){_S}|(?<![\w%])%L?\d\d?(?![\w%])",
    rf"\\\({_NO_WORDS}(?:(?!\\\))[^\n]){{1,200}}\\\)|\\\[{_NO_WORDS}(?:(?!\\\])[^\n]){{1,200}}\\\]",
    r"\$\$[^$\n]+\$\$",
    r"(?<![\w$])\$(?=[^$\n]{0,80}[\\^_=])[^$\s\d](?:[^$\n]{0,80}[^$\s])?\$(?![\w$])",
    r"(?<![\w:])(?::[a-z][a-z0-9_+-]+:)+(?!\w)",  # emoji by name
    r"\.{6,}[ \u00a0]?\d+(?!\w|[.,]\d)|\.{4,}",  # of contents
    r"_{3,}|(?<!\w)__?(?!\w)|-{4,}|={3,}|\*{4,}|~{3,}|·{3,}|…{2,}",  # lines to fill in
    r"(?<![\w:>-])(?:[A-Za-z]|this|self|ptr|node|(?=\w*[_\d])[A-Za-z_]\w*)(?:->[a-z_]\w*)+(?![\w:])",
    r"(?<![\w$%@#:/.+-])[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+(?![\w@])",  # names in programs
    WEB_ADDRESS,
    r"\b(?:mailto:(?=[^\s<>\":]*[@?])|tel:(?=[+\d*#])|urn:(?=\w+:)|magnet:(?=\?)|data:(?=[;,]|\w+/))[^\s<>\"]*[\w=/]"
    r"|\blocalhost:\d+(?:/[\w/-]*)?",
    r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?::[\w./-]*\w)?",
    # paths, names of files, domains, names of modules and functions
    r"(?<![\w<:/.])(?:~|\.{1,2})?(?:/[\w.*-]*\w){2,}/?|(?<![\w<:/.-])(?:~|\.{1,2})/[\w./-]*\w",
    r"(?<!\w)[A-Z]:\\[\w\\.-]*\w|(?<![\w\\])\\\\[\w-]+\\[\w\\-]*\w|(?<!\w)\*\.[a-z]{2,4}(?!\w)",
    rf"(?<![\w./-])(?:[\w-]++[./])++(?<=\.)(?:{_SUFFIXES})(?![\w-])",
    rf"(?<![\w./-])(?:[A-Za-z0-9][\w-]*+\.)+(?:{_DOMAINS})(?:/[^\s<>\"]*[\w/])?(?![\w-])",
    rf"(?<![\w./-])(?!{_SAID})[A-Za-z][\w-]++(?:\.(?!{_SAID})[A-Za-z][\w-]++){{2,}}(?:\(\))?",
    r"(?<![\w./:>-])[A-Za-z_]\w*(?:(?:\.|::|->)\w+)*\(\)",
    r"(?<![\w:>-])[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+(?![\w:])",
    # hashes, addresses of devices, versions
    r"(?<![\w.-])(?:sha\d+:|0x)[0-9A-Fa-f]+(?!\w)|(?<![\w.-])(?=[a-f]*+\d)(?=\d*+[a-f])[0-9a-f]{7,}(?![\w.-])",
    r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])|(?<![\w.])(?!\d\d?\.\d\d?\.\d{4}-)v?\d+\.\d+\.\d+[-+][a-z][\w.+-]*\w",
    r"(?<![\w.@/])(?:@[A-Za-z_]\w+)+",
    r"(?<![\w&#/.])(?:#\w*[^\W\d_]\w*)+",
    rf"[{_SYMBOLS}][{_SYMBOLS}\u200d\ufe0e\ufe0f\U000e0020-\U000e007f]*|[0-9#*]\ufe0f?\u20e3",
)
SYMBOL = re.compile(_LITERALS[-1])
# What every literal and every tag has: plain words with punctuation are not searched for them.
_SIGN = re.compile(rf"[^\w\s.,;!?'\"()–—-]|[\d_{_SYMBOLS}]|([.-])\1|\w\.\w\w|!\w|\(\)|www\.|(?:-\w{{4}}){{3}}")
# Tags of elements that end a sentence.
BLOCK = re.compile(
    r"</?(?:br|hr|p|div|li|[uod]l|d[td]|h[1-6]|table|t[rhd]|thead|tbody|blockquote|section|article|header|footer|nav"
    r"|option|select|button|caption|figure|figcaption|summary|details|main|aside|address|form|fieldset|legend)"
    r"(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_VISIBLE = (
    re.compile(  # except white space, Unicode's Default_Ignorable_Code_Point, a blank in Braille, annotation marks
        r"[^\s\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
        r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    )
)


_DATE = "y{2,4}|Y{2,4}|[MdDEHh]{1,4}|mm|ss|a|A"
_ICON = "fa[bsrl]?|mdi|icon|glyphicon|btn|ion|lni|uil|ti|ri"
# A whole string that is read by a program: names, constants, icons, types of media, versions, formats, addresses.
KEY = (  # slow to compile
    r"(?:\w+:)?[a-z]\w*(?:[.-]\w+)*(?:\.[\w-]+)+|[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+"
    r"|(?:[A-Za-z]\w*\.)*[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+|true|false|null|undefined|NaN"
    rf"|(?:(?:{_ICON}) )?(?:{_ICON})(?:-\w+)+(?: (?:{_ICON})(?:-\w+)+)*|bi bi-[\w-]+|bg-\w+"
    r"|(?:application|audio|font|image|message|model|multipart|text|video)/(?!audio|font|image|text|video)[\w.+*-]+"
    r"|v\d+(?:\.\d+)+[\w.+-]*|\d+(?:\.\d+)?(?:px|r?em|vh|vw|ms|s)|#[0-9A-Fa-f]{3,8}|(?:rgb|hsl)a?\([\d.,%\s/]+\)"
    rf"|(?:{_DATE})(?:[-./: ,]+(?:{_DATE}))+|[a-z]{{2}}[-_][A-Z]{{2}}|(?:mailto|tel|data|file|urn):\S+|\w+://\S+"
    r"|\w+(?:\.\w+)*\(\)|\.{1,2}/[\w./-]+|(?:/[\w.-]+){2,}/?|\$?\.[a-z][\w.\[\]-]*|--[a-z][\w-]*|-[a-z]"
)


@cache
def literal_pattern() -> re.Pattern[str]:
    """Return the pattern of literals. Compiling it takes milliseconds."""
    return re.compile("|".join((*_LITERALS, _LONG_NUMBER)))


@cache
def tag_pattern() -> re.Pattern[str]:
    """Return the pattern of tags, numbers with a unit, and literals."""
    tags = (
        r"(?P<close></[A-Za-z][^<>]*>)",
        r"(?P<single><[A-Za-z][^<>]*/>|<!--(?:(?!<!--).)*?-->)",
        r"(?P<open><[A-Za-z][^<>]*>)",
    )
    numbers = (
        rf"(?<![\w.,]){_NUMBER}[ \u00a0]?(?:{UNITS})(?!\w)",
        rf"(?<!\w)[€£¥$]{_NUMBER}(?!\w|[.,]\d)",
        _LONG_NUMBER,
    )
    return re.compile("|".join((*CODE, *tags, *_LITERALS, *numbers)))


@cache
def markup_pattern() -> re.Pattern[str]:
    """Return the pattern of tags and literals in strings of programs."""
    return re.compile("|".join((*_LITERALS, _LONG_NUMBER, r"</?(?:[A-Za-z][^<>]*|\d+/?)>|&(?:\w+|#\w+);")))


def may_have_tags(text: str) -> bool:
    """Return False if a text surely has no tag, no number and no literal. This is fast."""
    return _SIGN.search(text) is not None


def literals_in(text: str) -> list[re.Match[str]]:
    """Return the literals of a text, in order."""
    return list(literal_pattern().finditer(text)) if may_have_tags(text) else []


def literals(text: str) -> Counter[str]:
    """Return how often each literal occurs in a text."""
    return Counter(match[0] for match in literals_in(text))


def has_text(line: str) -> bool:
    """Return whether a line has a visible character. White space, zero-width characters and soft hyphens are not."""
    return _VISIBLE.search(line) is not None
