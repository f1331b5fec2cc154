"""The data card: what prepared text was made from, by which rules, what was dropped, and the files' checksums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relattn.translation.corpus.catalog import KNOWN
from relattn.translation.corpus.filters import OPTIONS, REASONS
from relattn.translation.corpus.report import Account


def card(record: dict[str, Any]) -> str:
    """The card as Markdown, of what `run.prepare` wrote down. The same record gives the same card."""
    settings = record["settings"]
    account = Account.from_json(record["account"])
    src, tgt = settings["languages"]
    name = settings.get("corpus", "Parallel text")
    parts = [f"# {name}: {src} to {tgt}, prepared", _origin(settings, record["origin"])]
    parts += ["## What was dropped", _table("|  | pairs | share |\n|---|---|---|", account.table())]
    parts += ["A pair is dropped for the first reason that it meets:", _rules(settings["cleaning"])]
    for reason, examples in account.examples.items():
        if examples:
            shown = (f"    {number}: {src} ||| {tgt}" for number, src, tgt in examples)
            parts += [f"The first of `{reason}`, with their numbers in the corpus:", "\n".join(shown)]
    rows = [(f"`{name}`", f"{file['lines']:,}", f"`{file['sha256']}`") for name, file in record["files"].items()]
    parts += ["## Files", _table("| file | lines | SHA-256 |\n|---|---|---|", rows)]
    return "\n\n".join(parts) + "\n"


def _origin(settings: dict[str, Any], origin: dict[str, Any]) -> str:
    if "corpus" not in settings:
        text = [(f"`{file['file']}`", name, f"`{file['sha256']}`") for name, file in settings["text"].items()]
        return "Made from\n\n" + _table("| file | as | SHA-256 of its text |\n|---|---|---|", text)
    corpus, files = KNOWN[settings["corpus"]], origin["files"]
    rows = [(f"`{f['name']}`", f"{f['size']:,}", f"`{f['sha256'] or 'blob ' + f['blob']}`") for f in files]
    texts = [f"`{text.name}` is {f'sacreBLEU’s {text.sacrebleu}' if text.sacrebleu else text.file}"
             for text in corpus.held_out]  # fmt: skip
    return (
        f"Made from the data set `{corpus.repository}` of the Hugging Face hub at commit `{files[0]['commit']}`:\n\n"
        + _table("| file | bytes | SHA-256, or Git's checksum |\n|---|---|---|", rows)
        + f"\n\nHeld out: {'; '.join(texts)}."
    )


def _rules(cleaning: dict[str, Any]) -> str:
    rows = []
    for reason, meaning in REASONS.items():
        set_to = ", ".join(f"{name} {_said(cleaning[name])}" for name in OPTIONS.get(reason, ()))
        rows.append((f"`{reason}`", meaning, set_to))
    return _table("| reason | meaning | settings |\n|---|---|---|", rows)


def _said(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else value


def _table(head: str, rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join([head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])
