"""A table's page, made of the rows there are: Markdown beside the paper's figures, a CSV with conditions, pictures."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relattn.translation.analysis.positions import PositionBin
from relattn.translation.config import differences
from relattn.translation.evaluation import paired_bootstrap
from relattn.translation.experiments import pictures, rows
from relattn.translation.experiments.rows import Result
from relattn.translation.experiments.scales import Pairs, Scale
from relattn.translation.experiments.tables import Entry, Table
from relattn.translation.files import write_atomically

_BY_DESIGN = ("model.", "seed:", "data.max_words:")  # settings in which rows differ, and that their names tell
_FEWEST = 300  # pieces in a bin that is printed


@dataclass(frozen=True)
class Line:
    """A model of a table, and its rows, one a seed."""

    entry: Entry
    results: list[Result]

    @property
    def finished(self) -> list[Result]:
        """Those that did not diverge."""
        return [result for result in self.results if not result.fault]

    def scores(self, name: str) -> list[float]:
        """A score of each finished row."""
        return [result.scores[name] for result in self.finished]


def write(table: Table, scale: Scale, out: Path, pairs: Pairs) -> Path:
    """Write the page of a table over all rows that have files; returns its path.

    Args:
        table: the table.
        scale: what it is trained on.
        out: directory of the page; the rows' files lie under `rows`.
        pairs: what the models translated.
    """
    words = scale.short if table.short else None
    lines = [Line(entry, _results(out / "rows", entry, words)) for entry in table.entries]
    lines = [line for line in lines if line.results]
    drawn = {
        f"{table.name}-{name}.png": png for name, png in pictures.drawn(table, lines, scale, pairs, _FEWEST).items()
    }
    for name, png in drawn.items():
        write_atomically(out / name, png)
    page = out / f"{table.name}.md"
    write_atomically(page, _markdown(table, scale, lines, pairs, list(drawn)).encode())
    write_atomically(page.with_suffix(".csv"), _csv(lines).encode())
    return page


def _results(files: Path, entry: Entry, words: int | None) -> list[Result]:
    """The rows of a model, by seed."""
    paths = files.glob(rows.path_of(files, entry.name, "[0-9]*", words).name)
    return sorted(map(rows.read, paths), key=lambda result: result.seed)


def _markdown(table: Table, scale: Scale, lines: list[Line], pairs: Pairs, drawn: list[str]) -> str:
    there = [line.entry for line in lines]
    missing = [entry.label for entry in table.entries if entry not in there]
    command = f"relattn reproduce {table.name} --scale {scale.name}"
    parts = [f"# {table.title}, at the scale of {scale.name}", f"    {command}"]
    if lines:
        parts += [_about(scale, lines, len(pairs)), *_main(table, lines, pairs)]
        parts += [f"![{Path(name).stem}]({name})" for name in drawn]
        sets = dict.fromkeys(name for line in lines for result in line.finished for name in result.positions)
        parts += [_by_position(name, lines) for name in sets]
    if missing:
        parts.append(f"Not trained yet: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def _about(scale: Scale, lines: list[Line], translated: int) -> str:
    """What was done, by the first row: others that differ are marked."""
    result = lines[0].results[0]
    model, data, training, search = (result.recipe[name] for name in ("model", "data", "train", "search"))
    held = result.conditions
    short = "" if data["max_words"] is None else f", on lines of at most {data['max_words']} words"
    return (
        f"{model['encoder_layers']} + {model['decoder_layers']} layers, d = {model['dim']}, feed-forward "
        f"{model['feed_forward_dim']}, {model['heads']} heads, dropout {model['dropout']}, {data['vocab_size']:,} "
        f"pieces or fewer. {training['steps']:,} steps of at most {training['accumulate']} × {data['max_tokens']:,} "
        f"padded pieces, {training['warmup_steps']:,} of them to warm up, {training['precision']}{short}; the mean of "
        f"the last {training['average']} checkpoints, {training['checkpoint_every']:,} steps apart. {translated:,} "
        f"lines translated, beam {search['beam_size']}, {search['length_penalty']} penalty {search['alpha']}.\n\n"
        f"relattn {held['relattn']} (code {held['code']}), torch {held['torch']}, Python {held['python']}, "
        f"{held['processor']}, {held['threads']} of them a training."
    )


def _main(table: Table, lines: list[Line], pairs: Pairs) -> list[str]:
    """The table itself, and what is to be said below it."""
    first = lines[0]
    measured = {name: value for line in lines for result in line.finished for name, value in result.scores.items()}
    names = [name for name in ("items", "lines", "bleu", "chrf") if name in measured]
    heads = {"items": "items right, %", "lines": "lines right, %", "bleu": "BLEU", "chrf": "chrF"}
    header = ["model", *(heads[name] for name in names), "valid nats", f"BLEU other than {first.entry.label}: p"]
    header += ["weights", "minutes", "the paper"]
    body: list[list[str]] = []
    notes: dict[str, int] = {}
    for line in lines:
        marks = "".join(f" ({notes.setdefault(text, len(notes) + 1)})" for text in _apart(line, first.results[0]))
        cells = [f"{line.entry.label}{marks}"]
        for name in names:
            factor = 100 if name in ("items", "lines") else 1
            cells.append(_spread([factor * value for value in line.scores(name)], 1))
        cells.append(_spread([_valid_loss(result) for result in line.finished], 3))
        cells.append(" · ".join(_p_values(line, first, pairs)) if line is not first else "")
        cells.append(f"{line.finished[0].parameters:,}" if line.finished else "")
        cells.append(_spread([result.seconds / 60 for result in line.finished], 0))
        cells.append("" if line.entry.paper is None else f"{line.entry.paper}")
        body.append(cells)
    seeds = " · ".join(str(result.seed) for result in first.results)
    parts = [_table([header, *body])]
    parts.append(
        f"Means over seeds, the least and the most in brackets where there are several (seeds {seeds} of "
        f"{first.entry.label}). BLEU: `{measured.get('signature', 'none')}`. p: the share of 1,000 paired bootstrap "
        f"samples that say otherwise (sacreBLEU's test), for each seed both have; 0.05 and less is a difference. "
        f"The paper: {table.source}."
    )
    told = [f"({number}) {text}" for text, number in notes.items()]
    return [*parts, "  \n".join(told)] if told else parts


def _apart(line: Line, first: Result) -> list[str]:
    """What is to be known of a model's rows: that they diverged, or were made otherwise than the table's first row."""
    told = []
    for result in line.results:
        changed = [text for text in differences(first.recipe, result.recipe) if not text.startswith(_BY_DESIGN)]
        changed += differences(first.conditions, result.conditions)
        told += [f"seed {result.seed}: {result.fault}"] if result.fault else []
        told += [f"seed {result.seed} was made otherwise: {'; '.join(changed)}"] if changed else []
    return told


def _p_values(line: Line, first: Line, pairs: Pairs) -> list[str]:
    references = [reference for _, reference in pairs]
    base = {result.seed: result.translations for result in first.finished}
    return [
        f"{paired_bootstrap(base[result.seed], result.translations, references):.3f}"
        for result in line.finished
        if result.seed in base and len(result.translations) == len(references)
    ]


def _valid_loss(result: Result) -> float:
    return [row.valid_loss for row in result.log if row.valid_loss is not None][-1]


def _spread(values: Sequence[float], digits: int) -> str:
    """ "98.1 (97.9 – 98.4)" of several, "98.1" of one, nothing of none."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} – {max(values):.{digits}f})"


def _by_position(name: str, lines: list[Line]) -> str:
    """Nats a piece by position, given the reference so far: means over seeds."""
    results = [result for line in lines for result in line.finished]
    order = [b.label for b in max((_bins(result, name) for result in results), key=len)]
    body = [["model", *order]]
    for line in lines:
        nats = {label: [b.nats for r in line.finished for b in _bins(r, name) if b.label == label] for label in order}
        body.append([line.entry.label, *(_spread(nats[label], 2).partition(" ")[0] for label in order)])
    longest = max(result.longest for result in results)
    said = f"## Nats a piece by position: {name}\n\nGiven the reference so far; the longest target trained on has "
    return f"{said}{longest} pieces. Bins of fewer than {_FEWEST} pieces are left out.\n\n{_table(body)}"


def _bins(result: Result, name: str) -> list[PositionBin]:
    return [b for b in result.positions[name] if b.pieces >= _FEWEST]


def _table(body: Sequence[Sequence[str]]) -> str:
    """Rows of cells as Markdown, the first of them the header."""
    lines = [f"| {' | '.join(cells)} |" for cells in body]
    return "\n".join([lines[0], "|" + "---|" * len(body[0]), *lines[1:]])


def _csv(lines: list[Line]) -> str:
    """A record for each row, with its conditions."""
    records: list[dict[str, Any]] = []
    for line in lines:
        for result in line.results:
            records.append(
                {"model": line.entry.label, "name": result.name, "seed": result.seed, "fault": result.fault}
                | {name: result.scores.get(name) for name in ("bleu", "chrf", "items", "lines")}
                | {"valid_nats": None if result.fault else _valid_loss(result), "parameters": result.parameters}
                | {"seconds": round(result.seconds), "steps": result.recipe["train"]["steps"]}
                | {"max_tokens": result.recipe["data"]["max_tokens"], "paper": line.entry.paper}
                | {"signature": result.scores.get("signature")}
                | result.conditions
            )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]) if records else ["model"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
