"""Page of a scale: its conditions, the paper's claims, the tables with the paper's figures, and a picture."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from relattn_mt.config import differences
from relattn_mt.support.errors import require
from relattn_mt.support.files import write_atomically

from research.pictures import draw
from research.rows import Model, Row, read_model
from research.significance import paired_bootstrap
from research.tables import CLAIMS, TABLES, Pairs, Scale, Table

LEVEL = 0.05  # differences with a p-value of at most this are significant
_RELATIONS = {">": "better than", "=": "as good as", "≤": "not better than"}


def write(scale: Scale, out: Path, texts: Mapping[str, Pairs]) -> Path:
    """Write the page of a scale with all rows that have a file, and return its path.

    Args:
        scale: The scale.
        out: Directory of the page and its picture. The rows are in `out/rows/SCALE`.
        texts: Texts that the models translated.

    Raises:
        InputError: No row has figures, or a file is not a row.
    """
    page, directory = out / f"{scale.name}.md", out / "rows" / scale.name
    models = {name: [read_model(directory, entry) for entry in table.entries] for name, table in TABLES.items()}
    trained = {name: sum(bool(model.rows) for model in members) for name, members in models.items()}
    most = max(trained.values())
    require(most > 0, f"{page}: there must be a row with figures, got none")
    models = {name: members for name, members in models.items() if trained[name] >= min(most, 2)}
    first = next(model.rows[0] for members in models.values() for model in members if model.rows)
    parts = [
        f"# The paper's tables, scale {scale.name}",
        _about(scale, first, texts),
        _claims(models, texts),
        *(_table(TABLES[name], members, first, texts) for name, members in models.items()),
        f"## Losses\n\n![Validation loss by step, and loss by target position in long lines]({scale.name}.png)\n\n"
        f"Left: loss during training. Right: loss by target position in long lines ({scale.long_name}).",
    ]
    picture = draw({TABLES[name].title: members for name, members in models.items()}, scale.long_name)
    write_atomically(page.with_suffix(".png"), picture)
    write_atomically(page, ("\n\n".join(parts) + "\n").encode())
    return page


def _about(scale: Scale, row: Row, texts: Mapping[str, Pairs]) -> str:
    """Return the recipe and the conditions of the first row. Other rows get a note if theirs differ."""
    model, data, train, search = (row.recipe[name] for name in ("model", "data", "train", "search"))
    conditions, scores = row.conditions, row.scores[next(iter(texts))]
    lines = ", ".join(f"{name} ({len(pairs):,} lines)" for name, pairs in texts.items())
    known = {
        "model": f"{model['encoder_layers']} + {model['decoder_layers']} layers, dimension {model['dim']}, "
        f"feed-forward dimension {model['feed_forward_dim']}, {model['heads']} heads, dropout {model['dropout']}, "
        f"vocabulary: at most {data['vocab_size']:,} tokens",
        "training": f"{train['steps']:,} steps, warm-up: {train['warmup_steps']:,} steps, batches of at most "
        f"{train['accumulate']} × {data['max_tokens']:,} tokens with padding, {train['precision']}; mean of the last "
        f"{train['average']} checkpoints, one every {train['checkpoint_every']:,} steps",
        "translation": f"{lines}; beam size {search['beam_size']}, length penalty {search['length_penalty']}, "
        f"alpha {search['alpha']}",
        "conditions": f"relattn {conditions['relattn']} (code {conditions['code']}), torch {conditions['torch']}, "
        f"Python {conditions['python']}, {conditions['processor']}; threads per run: {conditions['threads']}",
        "figures": f"means over seeds (range); validation loss: nats per token of {scale.valid_name}",
        "p": "p-value of a difference in BLEU for each seed, by sacreBLEU's paired bootstrap with 1,000 samples; "
        f"significant if p ≤ {LEVEL}",
    }
    table = markdown_table([{"what": name, "value": text} for name, text in known.items()])
    return f"{table}\n\nBLEU: `{scores['bleu_signature']}`."


def _claims(models: Mapping[str, Sequence[Model]], texts: Mapping[str, Pairs]) -> str:
    """Return whether the paper's claims hold: for each of them and each text, the difference and the p-values."""
    by_name = {model.entry.name: model for members in reversed(list(models.values())) for model in members}
    lines = []
    for claim in CLAIMS:
        if not {claim.first, claim.second} <= by_name.keys():
            continue
        first, second = by_name[claim.first], by_name[claim.second]
        line = {"in the paper": f"{first.entry.label}: {_RELATIONS[claim.relation]} {second.entry.label}"}
        for name, pairs in texts.items():
            if compared := _compare(first, second, name, pairs):
                prefix = _prefix(name, texts)
                found = [(difference > 0) - (difference < 0) if p <= LEVEL else 0 for difference, p in compared]
                right = {">": {1}, "=": {0}, "≤": {-1, 0}}[claim.relation]
                line[f"{prefix}difference in BLEU"] = mean_and_range([difference for difference, _ in compared], 1, "+")
                line[f"{prefix}p"] = ", ".join(f"{p:.3f}" for _, p in compared)
                line[f"{prefix}seeds as in the paper"] = f"{sum(x in right for x in found)} of {len(found)}"
        lines.append(line)
    return f"## The paper's claims\n\n{markdown_table([line for line in lines if len(line) > 1])}"


def _prefix(name: str, texts: Mapping[str, Pairs]) -> str:
    """Return the prefix of a text's columns: none if there is only one text."""
    return f"{name}: " if len(texts) > 1 else ""


def _compare(model: Model, other: Model, text: str, pairs: Pairs) -> list[tuple[float, float]]:
    """Return the difference in BLEU on a text, and its p-value, for each seed of both models."""
    references = [reference for _, reference in pairs]
    others = {row.seed: row for row in other.rows}
    return [
        (
            row.scores[text]["bleu"] - others[row.seed].scores[text]["bleu"],
            paired_bootstrap(others[row.seed].translations[text], row.translations[text], references),
        )
        for row in model.rows
        if row.seed in others
    ]


def _table(table: Table, models: Sequence[Model], first: Row, texts: Mapping[str, Pairs]) -> str:
    """Return a table, and notes on missing models and on rows that differ from the page's first one."""
    base = next(model for model in models if model.rows)
    missing = [model.entry.label for model in models if not (model.rows or model.faults)]
    lines = []
    notes: dict[str, int] = {}  # text and number
    for model in (model for model in models if model.rows or model.faults):
        own_notes = [*model.faults, *_differences(model, first)]
        marks = "".join(f" ({notes.setdefault(note, len(notes) + 1)})" for note in own_notes)
        line = {"model": f"{model.entry.label}{marks}"}
        for name, pairs in texts.items():
            prefix = _prefix(name, texts)
            for heading, score, digits, factor in (
                ("items correct, %", "items", 1, 100.0),
                ("lines correct, %", "lines", 1, 100.0),
                ("BLEU", "bleu", 1, 1.0),
                ("chrF", "chrf", 1, 1.0),
            ):
                values = [factor * row.scores[name][score] for row in model.rows if score in row.scores[name]]
                line[f"{prefix}{heading}"] = mean_and_range(values, digits)
            compared = [] if model is base else _compare(model, base, name, pairs)
            line[f"{prefix}p"] = ", ".join(f"{p:.3f}" for _, p in compared)
        for heading, figure, digits, factor in (
            ("validation loss", "valid_nats", 3, 1.0),
            ("parameters", "parameters", 0, 1.0),
            ("minutes of training", "seconds", 0, 1 / 60),
        ):
            line[heading] = mean_and_range([factor * row.figures[figure] for row in model.rows], digits)
        line["BLEU in the paper"] = str(model.entry.paper or "")
        lines.append(line)
    seeds = ", ".join(str(row.seed) for row in base.rows)
    legend = (
        f"Seeds of {base.entry.label}: {seeds}; p: against {base.entry.label}. The paper's figures: {table.source}."
    )
    if missing:
        legend += f" Not trained: {'; '.join(missing)}."
    notes_of_rows = (f"({number}) {note}" for note, number in notes.items())
    return "\n\n".join([f"## {table.title}", markdown_table(lines), legend, *notes_of_rows])


def _differences(model: Model, first: Row) -> list[str]:
    """Return a note for each group of rows whose recipe or conditions differ in the same way from the first row's."""
    same = {"seed": first.seed, "model": first.recipe["model"]}  # differ by design
    seeds: dict[str, list[str]] = defaultdict(list)
    for row in model.rows:
        if changes := differences(first.recipe | first.conditions, row.recipe | row.conditions | same):
            seeds["; ".join(changes)].append(str(row.seed))
    return [f"trained differently: {changes} (seed {', '.join(numbers)})" for changes, numbers in seeds.items()]


def mean_and_range(values: Sequence[float], digits: int, sign: str = "") -> str:
    """Return "98.1 (97.9 – 98.4)", or "98.1" if all values are equal, or "" if there are none."""
    if not values:
        return ""
    low, mean, high = (f"{x:{sign},.{digits}f}" for x in (min(values), statistics.mean(values), max(values)))
    return mean if min(values) == max(values) else f"{mean} ({low} – {high})"


def markdown_table(lines: Sequence[Mapping[str, str]]) -> str:
    """Return records as a Markdown table. Columns without any value are left out."""
    filled = {name for line in lines for name, value in line.items() if value}
    names = [name for name in dict.fromkeys(name for line in lines for name in line) if name in filled]
    rows = [names, ["---"] * len(names), *([line.get(name, "") for name in names] for line in lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
