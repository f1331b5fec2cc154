"""Lines without a letter are copied, and everything else is translated."""

import pytest
from relattn_mt import load
from relattn_mt.translate.options import TranslateOptions

from tests.support.bundles import save_random_bundle

COPIED = [
    "-", "***", "?", "1.", "——", "😀", "👩\u200d👩\u200d👧 ❤\ufe0f", "30 %", "\xa0- \t-", "\u0301", "Ⅷ ②", "<>",
    "1.1.1, 192.168.0.1, 26.11.2025", "\x01\x02 -", "",
]  # fmt: skip
TRANSLATED = ["1,204.50", "1.204.567,8", "- 3.5", "a", "1 a", "- é", "中", "א"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return load(save_random_bundle(tmp_path_factory.mktemp("bundle") / "bundle"))


@pytest.mark.parametrize("options", [TranslateOptions(), TranslateOptions(keep_tags=True), TranslateOptions(n_best=2)])
def test_lines_without_a_letter_are_copied(translator, options):
    lines = [line for pair in zip(COPIED, COPIED, strict=True) for line in pair] + TRANSLATED
    results = translator.n_best(lines, options)
    assert [best.text for best, *_ in results[: 2 * len(COPIED)]] == lines[: 2 * len(COPIED)]
    assert all(len(result) == 1 for result in results[: 2 * len(COPIED)])
    kept = TranslateOptions(n_best=options.n_best, keep_tags=options.keep_tags, copy=False)
    assert results[2 * len(COPIED) :] == translator.n_best(TRANSLATED, kept)


def test_alignment_of_a_copied_line(translator):
    ((copied,),) = translator.n_best(["1 - 2"], TranslateOptions(align=True))
    assert copied.alignment == [(0, 0), (1, 1), (2, 2)]


def test_lines_are_translated_on_request_and_with_a_prefix(translator):
    assert translator.translate(["?"], TranslateOptions(copy=False)) != ["?"]
    assert translator.translate(["?"], prefixes=["a"])[0].startswith("a")
