"""`relattn-mt export web` without a compiler; tests/system/test_web.py translates with what it writes."""

import hashlib
import io
import json
import os
from dataclasses import replace

import pytest
import sentencepiece
from relattn_mt.bundle import Bundle
from relattn_mt.engine import decoder
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer, Vocabulary
from relattn_mt.web import build, export, model_file

from tests.support.foreign_bundles import FIXTURES, LINES, bpe_pieces, make_bundle

pytestmark = pytest.mark.skipif(decoder.KERNELS is None, reason=f"no compiled engine: {decoder.MISSING}")
ENGINES = {"simd": b"one engine", "relaxed": b"another engine"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("web") / "bundle", dim=24, feed_forward_dim=40)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    monkeypatch.setattr(export, "engines", lambda: ENGINES)


def test_files_have_their_hash_and_the_manifest_lists_them(bundle, tmp_path):
    export.export(bundle, tmp_path / "site")
    first = {path.name: path.read_bytes() for path in (tmp_path / "site").iterdir()}
    manifest = json.loads(first["model.json"])
    entries = [*manifest["engines"].values(), manifest["model"], manifest["tokenizer"]["source"]]
    for entry in entries:
        content = first.pop(entry["file"])
        assert len(content) == entry["bytes"]
        assert hashlib.sha256(content).hexdigest()[:12] in entry["file"]
    assert {*first} == {*export.MODULE, *export.PAGE, "model.json", "page.css", "service.js"}
    tokens = {"src_begin": [], "src_end": [2], "tgt_begin": []}
    assert manifest["pairs"] == [{"from": bundle.src_lang, "to": bundle.tgt_lang, **tokens}]
    other = replace(bundle, search=replace(bundle.search, beam_size=7))
    export.export(other, tmp_path / "site")  # replaces the earlier model
    assert len([*(tmp_path / "site").glob("model-*.bin")]) == 1
    assert model_file.model_file(bundle) == model_file.model_file(bundle) != model_file.model_file(other)


def test_a_directory_with_other_files_is_kept(bundle, tmp_path):
    export.export(bundle, tmp_path)
    (tmp_path / "mine.html").touch()
    with pytest.raises(InputError, match=r"mine\.html"):
        export.export(bundle, tmp_path)
    assert (tmp_path / "mine.html").exists()


def test_rules_against_repetition_are_refused(bundle, tmp_path):
    search = replace(bundle.search, no_repeat_ngram=2)
    with pytest.raises(InputError, match="no_repeat_ngram"):
        export.export(replace(bundle, search=search), tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"model_type": "char"}, "type 4"), ({"treat_whitespace_as_suffix": True}, "spaces after them")],
)
def test_tokenizers_that_the_module_does_not_have_are_refused(bundle, tmp_path, options, message):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 5), model_writer=model, vocab_size=40, hard_vocab_limit=False, **options
    )
    content = model.getvalue()
    spm = sentencepiece.SentencePieceProcessor()
    spm.LoadFromSerializedProto(content)
    pieces = [*map(spm.id_to_piece, range(spm.get_piece_size()))]
    vocabulary = Vocabulary(pieces, pieces, start="<s>", end="</s>", unknown="<unk>")
    tokenizer = ImportedTokenizer(content, content, vocabulary)
    with pytest.raises(InputError, match=message):
        export.export(replace(bundle, tokenizer=tokenizer), tmp_path / "site")


def test_codes_of_moses_tokens_are_refused(bundle, tmp_path):
    codes = (FIXTURES / "bpe.model").read_bytes()
    pieces = ["</s>", "<unk>", *bpe_pieces()]
    vocabulary = Vocabulary(pieces, pieces, start="</s>", end="</s>", unknown="<unk>", bpe="argos")
    tokenizer = ImportedTokenizer(codes, codes, vocabulary)
    with pytest.raises(InputError, match="rules of Moses"):
        export.export(replace(bundle, tokenizer=tokenizer), tmp_path / "site")


def test_a_clone_without_a_compiler_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setattr(build, "find_spec", lambda _: None)
    compiler = tmp_path / "web.py"
    with pytest.raises(InputError, match="wheel of relattn-mt"):
        build.engines(compiler)
    compiler.write_text("raise SystemExit('a broken source')", encoding="utf-8")
    with pytest.raises(InputError, match="pip install ziglang"):
        build.engines(compiler)
    monkeypatch.setattr(build, "find_spec", lambda _: True)
    with pytest.raises(InputError, match="a broken source"):
        build.engines(compiler)
    script = "from pathlib import Path\nimport sys\nfor name in 'simd', 'relaxed':\n"
    script += "    Path(sys.argv[1], name + '.wasm').write_text(name)"
    compiler.write_text(script, encoding="utf-8")
    assert build.engines(compiler) == {"simd": b"simd", "relaxed": b"relaxed"}
    compiler.write_text("raise SystemExit('compiled again')", encoding="utf-8")
    assert len(build.engines(compiler)) == 2
    source = tmp_path / "engine.c"
    source.touch()
    os.utime(source, (2e9, 2e9))
    with pytest.raises(InputError, match="compiled again"):
        build.engines(compiler)
