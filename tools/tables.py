"""Write the tables of performance in the documentation from the CSV files of results.

    python -m tools.tables

A page has a comment before and after each table, `<!-- table NAME -->` and `<!-- end -->`. What stands between them is
replaced: the table NAME of `TABLES`, and a line with the conditions of its rows. The line says so where the code that
was timed has changed since.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import RESULTS, git
from tools import DOCS
from tools.pictures import read

Row = dict[str, str]
BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
CTRANSLATE2_INT8 = "ctranslate2 int8", "ctranslate2 int8 inter"
TRITON = ("library/src/relattn/backends/triton", "library/src/relattn/call.py")
KERNELS = ("library/src/relattn/backends/native", "library/src/relattn/call.py")
DECODER = ("toolkit/src/relattn_mt/engine", "toolkit/src/relattn_mt/search")
ENCODERS = (*KERNELS, "library/src/relattn/integrations/transformers")
BOTH, FORWARD = {"pass": "forward + backward"}, {"pass": "forward"}
FULL, CAUSAL = {"causal": "False"}, {"causal": "True"}
Lines = Sequence[tuple[str, Row]]  # label of a line, and the values of columns that choose its rows


def by_length(name: str, lines: Lines, column: str, code: Sequence[str] = KERNELS) -> str:
    """Return a table of one column of a CSV file, a line per choice of rows and a column per length n."""
    rows = read(RESULTS / name)
    cells = {label: {int(row["n"]): row for row in rows if chosen.items() <= row.items()} for label, chosen in lines}
    lengths = sorted({n for found in cells.values() for n in found})
    table = [["n", *(f"{n:,}" for n in lengths)]]
    for label, found in cells.items():
        table.append([label, *(number(found[n][column]) if n in found else "–" for n in lengths)])
    return markdown(table) + conditions([row for found in cells.values() for row in found.values()], code)


def number(text: str) -> str:
    """Return a number with two decimals below 2, one below 10, and none above."""
    value = float(text)
    return f"{value:.2f}" if value < 1.995 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def decoding() -> str:
    """Return target tokens per second of translators on one thread, a line per method, a column per model and beam."""
    rows = [row for row in read(RESULTS / "decoding-cpu.csv") if row["method"] in DECODERS and row["threads"] == "1"]
    columns = list(dict.fromkeys((row["name"], row["beam"]) for row in rows))
    table = [["", *(f"{name}, beam {beam}" for name, beam in columns)]]
    for device in sorted({row["device"] for row in rows}):
        those = [row for row in rows if row["device"] == device]
        speed = {(row["name"], row["beam"], row["method"]): int(row["tokens_per_second"]) for row in those}
        group = "AVX2" if "AVX2" in device else "AVX-512"
        for method, label in DECODERS.items():
            table.append([f"{group}: {label}", *(f"{speed[*column, method]:,}" for column in columns)])
        ratios = (speed[*column, "relattn early"] / speed[*column, "ctranslate2"] for column in columns)
        table.append([f"{group}: relattn ÷ CTranslate2, float32", *(f"{ratio:.2f}" for ratio in ratios)])
    return markdown(table) + conditions(rows, DECODER)


def int8_decoding() -> str:
    """Return target tokens per second in int8, a line per method, a column per model and beam size."""
    rows = read(RESULTS / "decoding-int8-cpu.csv")
    columns = list(dict.fromkeys((row["name"], row["beam"]) for row in rows))
    columns.sort(key=lambda column: not column[0].startswith("demo"))
    table = [["", *(f"{name}, beam {beam}" for name, beam in columns)]]
    for device, threads in sorted({(row["device"], row["threads"]) for row in rows}):
        those = [row for row in rows if (row["device"], row["threads"]) == (device, threads)]
        speed = {(row["name"], row["beam"], row["method"]): int(row["tokens_per_second"]) for row in those}
        level = "AVX-512 VNNI" if "AVX2" not in device else "AVX2, Zen 3" if "25" in device else "AVX2, forced"
        group = f"{level}, {threads} thread{'s' * (threads != '1')}"
        ours = [speed.get((*column, "relattn int8"), 0) for column in columns]
        theirs = [max(speed.get((*column, name), 0) for name in CTRANSLATE2_INT8) for column in columns]
        floats = [speed.get((*column, "relattn"), 0) for column in columns]
        for name, given in (("relattn, float32", floats), ("relattn, int8", ours), ("CTranslate2, int8", theirs)):
            if any(given):
                table.append([f"{group}: {name}", *(f"{each:,}" if each else "–" for each in given)])
        ratios = (f"{own / other:.2f}" if other else "–" for own, other in zip(ours, theirs, strict=True))
        table.append([f"{group}: relattn ÷ CTranslate2", *ratios])
    return markdown(table) + conditions(rows, DECODER)


def int8_encoders() -> str:
    """Return seconds of encoders with linear layers in int8, beside ONNX Runtime's, a line per model and length."""
    rows = read(RESULTS / "int8-encoders-cpu.csv")
    names = ("own code", "relattn", "relattn int8", "ONNX Runtime int8")
    table = [["encoder", "length", *names, "ONNX Runtime ÷ relattn int8", "cosine: relattn int8", "ONNX Runtime"]]
    for model, size, unit in dict.fromkeys((row["model"], row["size"], row["unit"]) for row in rows):
        here = {row["method"]: row for row in rows if (row["model"], row["size"]) == (model, size)}
        seconds = [f"{float(here[name]['seconds']):.3g}" for name in names]
        ours, theirs = (here[name] for name in names[2:])
        ratio = f"{float(theirs['seconds']) / float(ours['seconds']):.2f}"
        table.append([model, f"{int(size):,} {unit}", *seconds, ratio, ours["cosine"], theirs["cosine"]])
    return markdown(table) + conditions(rows, ENCODERS)


def int8_levels() -> str:
    """Return seconds of DeBERTa v3 base with linear layers in int8, a line per processor level, threads and length."""
    rows = read(RESULTS / "int8-levels-cpu.csv")
    names = ("own code", "relattn", "relattn int8", "ONNX Runtime int8")
    table = [["level", "threads", "tokens", *names, "own code ÷ relattn int8"]]
    for device, threads, size in dict.fromkeys((row["device"], row["threads"], row["size"]) for row in rows):
        here = {row["method"]: float(row["seconds"]) for row in rows if (device, threads, size) == (
            row["device"], row["threads"], row["size"])}  # fmt: skip
        level = "AVX2" if "AVX2" in device else "AVX-512 VNNI"
        ratio = f"{here['own code'] / here['relattn int8']:.1f}"
        table.append([level, threads, size, *(f"{here[name]:.3g}" for name in names), ratio])
    return markdown(table) + conditions(rows, ENCODERS)


def small_calls() -> str:
    """Return ratios of small calls at the last commit of the file, a column per processor level and pass."""
    rows = read(RESULTS / "small-calls-cpu.csv")
    rows = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    ratios = {(row["case"], row["device"], row["pass"]): number(row["ratio"]) for row in rows}
    columns = sorted({(row["device"], row["pass"]) for row in rows})
    table = [["", *(f"{'AVX2' if 'AVX2' in device else 'AVX-512'}, {phase}" for device, phase in columns)]]
    for case in dict.fromkeys(row["case"] for row in rows):
        table.append([case, *(ratios.get((case, *column), "–") for column in columns)])
    return markdown(table) + conditions(rows, KERNELS)


def encoders(since: str, until: str) -> str:
    """Return seconds and memory of encoders of transformers, of the fastest own code and ours, in a range of dates."""
    rows = [row for row in read(RESULTS / "models-cpu.csv") if since <= row["date"] < until]
    sizes: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        sizes.setdefault((row["model"], row["size"], row["unit"]), {})[row["method"]] = row
    columns = ("own code", "relattn", "relattn ÷ own")
    table = [["encoder", "length", *columns]]
    last = ""
    for (model, size, unit), methods in sizes.items():
        length = f"{int(size):,} × {int(size):,} pixels" if unit == "pixels" else f"{int(size):,} {unit}"
        own = [row for method, row in methods.items() if method != "relattn"]
        fastest = min((row for row in own if row["seconds"]), key=lambda row: float(row["seconds"]), default=None)
        ours = methods["relattn"]
        cells = [seconds_and_memory(fastest or next(iter(own), None)), seconds_and_memory(ours)]
        ratio = f"{float(ours['seconds']) / float(fastest['seconds']):.2f}" if fastest else "–"
        table.append([model if model != last else "", length, *cells, ratio])
        last = model
    return markdown(table) + conditions(rows, ENCODERS)


def seconds_and_memory(row: Row | None) -> str:
    if row is None:
        return "–"
    if not row["seconds"]:
        return row["note"].split(" extrapolated")[0].replace("left out", "not tried")
    seconds = float(row["seconds"])
    return f"{f'{seconds:,.0f}' if seconds > 999 else f'{seconds:.3g}'} · {int(row['peak_mib']):,}"


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Return a table whose first line is its head."""
    head, *lines = table
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines))


def conditions(rows: Sequence[Row], code: Sequence[str]) -> str:
    """Return a paragraph with the processors, dates and commits of rows, and what differs from the usual conditions."""
    values = {name: sorted({row[name].removesuffix("+cpu") for row in rows}) for name in ("device", "threads", "torch")}
    parts = [", ".join(device.removesuffix(", 2 cores") for device in values["device"])]
    parts += [f"threads: {', '.join(values['threads'])}"] if values["threads"] != ["2"] else []
    parts += [f"torch {', '.join(values['torch'])}"] if values["torch"] != ["2.13.0"] else []
    commits = sorted({row["commit"] for row in rows})
    dates = sorted({row["date"] for row in rows if row.get("date")})
    parts.append(f"commit {', '.join(commits)}")
    parts += [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    is_old = any(git("log", "--oneline", f"{commit.rstrip('+')}..HEAD", "--", *code) for commit in commits)
    return f"\n({'; '.join(parts)}.{' The code has changed since.' if is_old else ''})\n"


PACKAGES = ("disentangled-flash", "FlashDeBERTa")
PEERS = ("OpenNMT-py", "eole", "W2V-BERT", "VITS")
DECODERS = {
    "relattn early": "relattn",
    "ctranslate2": "CTranslate2, float32",
    "relattn early pytorch": "relattn on PyTorch",
}
FLOAT32 = {"dtype": "float32", "dropout": "0.0"}
NAMES = (("dense", "`dense`"), *((name, name) for name in PEERS))
TIMES: Lines = [
    (f"{'causal, ' * (causal is CAUSAL)}{passes['pass']}", FLOAT32 | {"method": "auto"} | causal | passes)
    for causal in (FULL, CAUSAL)
    for passes in (FORWARD, BOTH)
]
PEER_TIMES: Lines = [(label, FLOAT32 | {"method": method} | FULL | BOTH) for method, label in NAMES]
MEMORY: Lines = [
    (label, FLOAT32 | {"method": method} | FULL | BOTH)
    for method, label in (("plain", "PyTorch, no positions"), ("auto", "`auto`"))
]
ANCHORS: Lines = [
    ("`auto`, both tables", {"method": "auto"}),
    ("`auto`, no tables", {"method": "no tables"}),
    ("zentorch", {"method": "zentorch"}),
    ("OpenVINO", {"method": "openvino"}),
    ("FlexAttention, compiled", {"method": "flex"}),
]
FORM_NAMES = (
    ("Transformer-XL", "Transformer-XL's form"),
    ("T5", "T5's bias"),
    ("DeBERTa", "DeBERTa's form"),
    ("DeBERTa by mask", "DeBERTa's form, all pairs gathered"),
)
FORMS: Lines = [
    (f"{label}, {passes['pass']}", FULL | passes | {"method": method, "tokens": "4096"})
    for method, label in FORM_NAMES
    for passes in (FORWARD, BOTH)
]
DROPOUT: Lines = [
    (f"dropout {dropout}, {passes['pass']}", FULL | passes | {"method": "no tables", "dropout": dropout})
    for dropout in ("0.0", "0.1")
    for passes in (FORWARD, BOTH)
]
ON_GPU = {"dtype": "bfloat16", "dim": "64", "clip": "16"}
GPU: Lines = [
    (f"{label}, {'causal, ' * (causal is CAUSAL)}{passes['pass']}", ON_GPU | {"method": method} | causal | passes)
    for causal in (FULL, CAUSAL)
    for passes in (FORWARD, BOTH)
    for method, label in (
        *(("triton", "`triton`"), ("flash", "PyTorch, flash attention"), ("cudnn", "PyTorch, cuDNN")),
        *(("flex", "FlexAttention, keys alone"), ("dense", "`dense`"))[causal is CAUSAL :],
    )
]
LAYERS: Lines = [
    (f"{label}, {passes['pass']}", {"layer": layer} | passes)
    for passes in (FORWARD, BOTH)
    for layer, label in (("relattn", "`relattn`"), *((name, name) for name in (*PACKAGES, "own code")))
]
SCHEMES: Lines = [
    (label, {"positions": name})
    for name, label in (
        ("relative", "relative, both tables"),
        ("relative-relative_tables=keys", "relative, aK only"),
        ("relative-relative_tables=values", "relative, aV only"),
        *((name, name) for name in ("sinusoidal", "learned")),
        *(("xl", "Transformer-XL"), ("t5", "T5"), ("alibi", "ALiBi"), ("rope", "RoPE")),
    )
]
WINDOWS: Lines = [
    ("`window=(128, 128)`, forward", {"method": "window", "window": "128"} | FORWARD),
    ("`window=(128, 128)`, forward + backward", {"method": "window", "window": "128"} | BOTH),
    ("all pairs, forward", {"method": "full"} | FORWARD),
    ("PyTorch with a mask, forward", {"method": "mask"} | FORWARD),
    ("FlexAttention with a block mask, forward", {"method": "flex"} | FORWARD),
]
TABLES: dict[str, Callable[[], str]] = {
    "attention-time": lambda: by_length("attention-cpu.csv", TIMES, "time ratio"),
    "attention-avx2": lambda: by_length("attention-avx2-cpu.csv", TIMES, "time ratio"),
    "peers-time": lambda: by_length("attention-cpu.csv", PEER_TIMES, "time ratio"),
    "attention-memory": lambda: by_length("attention-cpu.csv", MEMORY, "peak MiB"),
    "anchors": lambda: by_length("anchors-cpu.csv", ANCHORS, "time ratio"),
    "attention-gpu": lambda: by_length("attention-gpu.csv", GPU, "ms", TRITON),
    "layers-gpu": lambda: by_length("layers-gpu.csv", LAYERS, "ms", TRITON),
    "forms": lambda: by_length("family-cpu.csv", FORMS, "time ratio"),
    "dropout": lambda: by_length("plain-attention-cpu.csv", DROPOUT, "time ratio"),
    "training-step": lambda: by_length("train-step-cpu.csv", SCHEMES, "ratio"),
    "windows": lambda: by_length("windows-cpu.csv", WINDOWS, "us per token"),
    "small-calls": small_calls,
    "decoding": decoding,
    "int8-decoding": int8_decoding,
    "int8-encoders": int8_encoders,
    "int8-levels": int8_levels,
    "encoders": lambda: encoders("2026-11", "2027"),
    "encoders-earlier": lambda: encoders("", "2026-11"),
}


def written(page: str) -> str:
    """Return a page with its tables made anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[3]}", page)


def pages() -> list[Path]:
    """Return the pages that have tables."""
    return [path for path in DOCS.rglob("*.md") if BLOCK.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    for path in pages():
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
