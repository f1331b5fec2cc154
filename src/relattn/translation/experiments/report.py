"""Page of a table: Markdown with the paper's figures, pictures, and a CSV file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relattn.translation.config import differences
from relattn.translation.errors import require
from relattn.translation.evaluation import paired_bootstrap
from relattn.translation.experiments.pictures import draw_all
from relattn.translation.experiments.rows import MIN_TOKENS, Model, Row, read_model
from relattn.translation.experiments.tables import Pairs, Scale, Table
from relattn.translation.files import as_csv, write_atomically

COLUMNS = (  # heading, figure, digits, factor
    ("items correct, %", "items", 1, 100),
    ("lines correct, %", "lines", 1, 100),
    ("BLEU", "bleu", 1, 1),
    ("chrF", "chrf", 1, 1),
    ("validation loss", "valid_nats", 3, 1),
    ("parameters", "parameters", 0, 1),
    ("training, minutes", "seconds", 0, 1 / 60),
)


def write(table: Table, scale: Scale, out: Path, pairs: Pairs) -> Path:
    """Write the page of a table with all rows that have a file, and return its path.

    Args:
        table: the table.
        scale: its scale.
        out: directory of the page. The rows are under `rows`.
        pairs: pairs that the models translated.

    Raises:
        InputError: the table has no row with figures, or a file is not a row.
    """
    page = out / f"{table.name}.md"
    models = [read_model(out / "rows", entry, scale) for entry in table.entries]
    trained = [model for model in models if model.rows]
    require(bool(trained), f"{page}: there must be a row with figures, got none")
    first = trained[0].rows[0]
    images = draw_all(table, scale, trained, pairs)
    for name, png in images.items():
        write_atomically(out / f"{name}.png", png)
    parts = [
        f"# {table.title}, scale {scale.name}",
        f"    relattn reproduce {table.name} --scale {scale.name}",
        _about(first, len(pairs)),
        _main_table(table, models, trained[0], pairs),
        *(f"![{name}]({name}.png)" for name in images),
        *(_position_table(trained, lines) for lines in first.positions),
    ]
    write_atomically(page, ("\n\n".join(parts) + "\n").encode())
    write_atomically(page.with_suffix(".csv"), as_csv(_grid(_records(models))).encode())
    return page


def _about(row: Row, lines: int) -> str:
    """Return the recipe and the conditions of the first row. Other rows get a note if theirs differ."""
    model, data, train, search = (row.recipe[name] for name in ("model", "data", "train", "search"))
    words = "" if data["max_words"] is None else f" on lines of at most {data['max_words']} words"
    conditions = row.conditions
    return (
        f"- Model: {model['encoder_layers']} + {model['decoder_layers']} layers, dimension {model['dim']}, "
        f"feed-forward dimension {model['feed_forward_dim']}, {model['heads']} heads, dropout {model['dropout']}, "
        f"vocabulary: at most {data['vocab_size']:,} tokens.\n"
        f"- Training: {train['steps']:,} steps{words}, warm-up: {train['warmup_steps']:,} steps, batches of at most "
        f"{train['accumulate']} × {data['max_tokens']:,} tokens with padding, {train['precision']}. The last "
        f"{train['average']} checkpoints are averaged; there is one every {train['checkpoint_every']:,} steps.\n"
        f"- Translation: {lines:,} lines, beam size {search['beam_size']}, length penalty {search['length_penalty']}, "
        f"alpha {search['alpha']}.\n"
        f"- Conditions: relattn {conditions['relattn']} (code {conditions['code']}), torch {conditions['torch']}, "
        f"Python {conditions['python']}, {conditions['processor']}; threads per run: {conditions['threads']}."
    )


def _main_table(table: Table, models: Sequence[Model], base: Model, pairs: Pairs) -> str:
    """Return the table, its legend, and notes on missing rows and on rows that differ from the first one of `base`."""
    first = base.rows[0]
    lines = []
    notes: dict[str, int] = {}  # text and number
    for model in models:
        texts = [*model.faults, *_differences(model, first)]
        marks = "".join(f" ({notes.setdefault(text, len(notes) + 1)})" for text in texts)
        line = {"model": f"{model.entry.label}{marks}"}
        for heading, figure, digits, factor in COLUMNS:
            values = [factor * row.figures[figure] for row in model.rows if figure in row.figures]
            line[heading] = mean_and_range(values, digits)
        line[f"p, against {base.entry.label}"] = ", ".join(_p_values(model, base, pairs))
        line["BLEU in the paper"] = str(model.entry.paper or "")
        lines.append(line)
    seeds = ", ".join(str(row.seed) for row in base.rows)
    legend = (
        f"Figures are means over seeds, with the range in brackets; the seeds of {base.entry.label} are {seeds}. BLEU: "
        f"`{first.figures['bleu_signature']}`. Validation loss: nats per token. p: p-value of the difference in BLEU, "
        f"per seed, by sacreBLEU's paired bootstrap with 1,000 samples; p ≤ 0.05 is a significant difference. The "
        f"paper's figures: {table.source}."
    )
    return "\n\n".join([markdown_table(lines), legend, *(f"({number}) {text}" for text, number in notes.items())])


def _differences(model: Model, first: Row) -> list[str]:
    """Return a note per row whose recipe or conditions differ from the first row's."""
    same = {"seed": first.seed, "model": first.recipe["model"]}  # differ by design
    notes = []
    for row in model.rows:
        if changes := differences(first.recipe | first.conditions, row.recipe | row.conditions | same):
            notes.append(f"seed {row.seed} was trained differently: {'; '.join(changes)}")
    return notes


def _p_values(model: Model, base: Model, pairs: Pairs) -> list[str]:
    references = [reference for _, reference in pairs]
    others = {row.seed: row.translations for row in base.rows if model is not base}
    return [
        f"{paired_bootstrap(others[row.seed], row.translations, references):.3f}"
        for row in model.rows
        if row.seed in others
    ]


def _position_table(models: Sequence[Model], name: str) -> str:
    """Return a table of a set of lines: the mean over seeds of the nats per token, by target position."""
    lines = []
    for model in models:
        nats = model.curve(lambda row: row.nats_by_position(name, "label"))
        lines.append({"model": model.entry.label} | {label: f"{value:.2f}" for label, value in nats.items()})
    return (
        f"## Nats per token by target position: {name}\n\n"
        f"Each token is predicted from the source and the reference before it. The longest training target has "
        f"{models[0].rows[0].figures['longest']} tokens. Bins with fewer than {MIN_TOKENS} tokens are left out.\n\n"
    ) + markdown_table(lines)


def _records(models: Sequence[Model]) -> list[dict[str, Any]]:
    """Return a record per row for the CSV file."""
    return [
        {"model": model.entry.label, "seed": row.seed}
        | row.figures
        | {"paper": model.entry.paper, "steps": row.recipe["train"]["steps"]}
        | row.conditions
        for model in models
        for row in model.rows
    ]


def mean_and_range(values: Sequence[float], digits: int) -> str:
    """Return "98.1 (97.9 – 98.4)", or "98.1" if all values are equal, or "" if there are none."""
    if not values:
        return ""
    low, mean, high = (f"{x:,.{digits}f}" for x in (min(values), statistics.mean(values), max(values)))
    return mean if min(values) == max(values) else f"{mean} ({low} – {high})"


def markdown_table(lines: Sequence[Mapping[str, str]]) -> str:
    """Return records as a Markdown table."""
    header, *body = _grid(lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *body])


def _grid(records: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return a header, and a list of cells per record. Columns without any value are left out."""
    names = dict.fromkeys(name for record in records for name, value in record.items() if value not in ("", None))
    return [list(names), *([record.get(name, "") for name in names] for record in records)]
