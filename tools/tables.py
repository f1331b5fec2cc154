"""Write the tables of performance in the documentation from the CSV files of results.

    python -m tools.tables

A page has a comment before and after each table, `<!-- table NAME -->` and `<!-- end -->`. What stands between them is
replaced: the table NAME of `TABLES`, and a line with the conditions of its rows. Each row has its processor, AVX2
first, and its commit.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from benchmarks.measure import RESULTS
from tools import DOCS
from tools.pictures import read

Row = dict[str, str]
BLOCK = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
CTRANSLATE2_INT8 = "ctranslate2 int8", "ctranslate2 int8 inter"
PROCESSORS = {  # names of processors in tables, in their order
    "AMD EPYC (family 25, AVX2)": "Zen 3, AVX2",
    "AMD EPYC (family 26, AVX2)": "Zen 5, AVX2 forced",
    "AMD EPYC (family 25, AVX-512)": "Zen 4, AVX-512",
    "Intel(R) Xeon(R) Processor (family 6, model 106, AVX-512)": "Ice Lake, AVX-512",
    "Intel(R) Xeon(R) Processor (family 6, model 207, AVX-512)": "Emerald Rapids, AMX",
    "AMD EPYC (family 26, AVX-512)": "Zen 5, AVX-512",
}
PROGRAMS = {
    "relattn-mt": "relattn-mt",
    "ctranslate2": "CTranslate2 4.8.5",
    "bergamot": "Bergamot 0.4.5",
    "argos": "Argos Translate 1.11.0",
    "libretranslate": "LibreTranslate 1.9.6",
}
FIREFOX_PROGRAMS = {
    "bergamot": "Bergamot 0.4.5",
    "fxtranslate": "fxtranslate 0.5.0",
    "relattn-mt": "relattn-mt",
    "relattn-mt 7 bits": "relattn-mt, 7 bits",
}
WEB_PROGRAMS = {
    "relattn-mt relaxed": "relattn-mt, relaxed SIMD",
    "relattn-mt simd": "relattn-mt, SIMD128",
    "relattn-mt relaxed, 8 bits": "relattn-mt, relaxed SIMD, 8 bits",
    "bergamot": "Bergamot 0.4.9",
    "fxtranslate": "fxtranslate 0.4.2",
    "transformers.js": "transformers.js 4.3.2, int8",
}
BOTH, FORWARD = {"pass": "forward + backward"}, {"pass": "forward"}
FULL, CAUSAL = {"causal": "False"}, {"causal": "True"}
Lines = Sequence[tuple[str, Row]]  # label of a line, and the values of columns that choose its rows


def by_processor(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the name of each processor in rows, AVX2 first, and its rows."""
    names, found = list(PROCESSORS), {row["device"].removesuffix(", 2 cores"): None for row in rows}
    for device in sorted(found, key=lambda device: names.index(device) if device in names else len(names)):
        those = [row for row in rows if row["device"].removesuffix(", 2 cores") == device]
        yield PROCESSORS.get(device, device), those


def commits(rows: Sequence[Row]) -> str:
    """Return the commits of rows, each once."""
    return ", ".join(dict.fromkeys(row["commit"][:8] + "+" * row["commit"].endswith("+") for row in rows))


def by_length(name: str, lines: Lines, column: str, some: Sequence[int] = ()) -> str:
    """Return a table of one column of a CSV file, a line per processor and choice of rows, a column per length n.

    With `some` lengths, the table has these alone, and no commits.
    """
    chosen = [row for row in read(RESULTS / name) if any(choice.items() <= row.items() for _, choice in lines)]
    lengths = some or sorted({int(row["n"]) for row in chosen})
    table = [["processor", "n", *(f"{n:,}" for n in lengths)]]
    if not some:
        table[0].append("commit")
    for processor, rows in by_processor(chosen):
        for label, choice in lines:
            cells = {int(row["n"]): row for row in rows if choice.items() <= row.items()}
            values = [number(cells[n][column]) if n in cells else "–" for n in lengths]
            if not cells:
                continue
            table.append([processor, label, *values])
            if not some:
                table[-1].append(commits(list(cells.values())))
    return markdown(table) + conditions(chosen)


def number(text: str) -> str:
    """Return a number with two decimals below 2, one below 10, and none above."""
    value = float(text)
    return f"{value:.2f}" if value < 1.995 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


def decoding(name: str, ours: Sequence[tuple[str, str]], theirs: tuple[str, Sequence[str]]) -> str:
    """Return target tokens per second of translators, a column per model and beam size.

    Args:
        name: CSV file.
        ours: Method and label of our lines; the last is compared.
        theirs: Label of CTranslate2's line, and its methods, of which the fastest counts.
    """
    rows = [row for row in read(RESULTS / name) if row["method"] in (*(method for method, _ in ours), *theirs[1])]
    columns = list(dict.fromkeys((row["name"], row["beam"]) for row in rows))
    columns.sort(key=lambda column: not column[0].startswith("demo"))
    table = [["processor", "threads", "", *(f"{name}, beam {beam}" for name, beam in columns), "commit"]]
    for processor, threads in product(by_processor(rows), ("1", "2")):
        those = [row for row in processor[1] if row["threads"] == threads]
        speed = {(row["name"], row["beam"], row["method"]): int(row["tokens_per_second"]) for row in those}
        found = [(label, [speed.get((*column, method), 0) for column in columns]) for method, label in ours]
        best = [max(speed.get((*column, method), 0) for method in theirs[1]) for column in columns]
        start = [processor[0], threads]
        for label, values in (*found, (theirs[0], best)):
            if any(values):
                table.append([*start, label, *(f"{each:,}" if each else "–" for each in values), commits(those)])
        ratios = [f"{own / other:.2f}" if other else "–" for own, other in zip(found[-1][1], best, strict=True)]
        table += [[*start, "ratio of the last two", *ratios, commits(those)]] * bool(those)
    return markdown(table) + conditions(rows)


def int8_encoders() -> str:
    """Return seconds of encoders with linear layers in int8, beside ONNX Runtime's, a line per model and length."""
    rows = read(RESULTS / "int8-encoders-cpu.csv")
    names = ("own code", "relattn", "relattn int8", "ONNX Runtime int8")
    ratios = ("own code ÷ relattn int8", "ONNX Runtime ÷ relattn int8")
    table = [["processor", "threads", "encoder", "length", *names, *ratios, "cosines of the last two", "commit"]]
    for processor, those in by_processor(rows):
        kinds = dict.fromkeys((row["threads"], row["model"], row["size"], row["unit"]) for row in those)
        for threads, model, size, unit in kinds:
            same = threads, model, size
            here = {row["method"]: row for row in those if (row["threads"], row["model"], row["size"]) == same}
            seconds = {name: float(row["seconds"]) for name, row in here.items()}
            ratio = [f"{seconds[name] / seconds['relattn int8']:.2f}" for name in (names[0], names[-1])]
            cosines = ", ".join(here[name]["cosine"] for name in names[2:])
            start = [processor, threads, model, f"{int(size):,} {unit}"]
            cells = [f"{seconds[name]:.3g}" for name in names]
            table.append([*start, *cells, *ratio, cosines, commits(list(here.values()))])
    return markdown(table) + conditions(rows)


def small_calls() -> str:
    """Return ratios of small calls, a column per processor and pass."""
    rows = read(RESULTS / "small-calls-cpu.csv")
    columns = [
        (processor, phase, those) for processor, those in by_processor(rows) for phase in ("forward", BOTH["pass"])
    ]
    table = [["", *(f"{processor}, {phase}" for processor, phase, _ in columns)]]
    for case in dict.fromkeys(row["case"] for row in rows):
        ratios = [{(row["case"], row["pass"]): row["ratio"] for row in those} for *_, those in columns]
        cells = [found.get((case, phase)) for (_, phase, _), found in zip(columns, ratios, strict=True)]
        table.append([case, *(number(cell) if cell else "–" for cell in cells)])
    table.append(["commit", *(commits(those) for *_, those in columns)])
    return markdown(table) + conditions(rows)


def engines() -> str:
    """Return size, start, memory and speed of translation engines and servers, a line per program."""
    rows = read(RESULTS / "engines-cpu.csv")
    speeds = tuple(product(("1", "2"), ("1", "4")))  # threads, beam size
    head = ["program", "installed, MB", "first answer, s", "peak, MiB"]
    table = [[*head, *(f"words/s: {threads} thread{'s' * (threads > '1')}, beam {beam}" for threads, beam in speeds)]]
    table[0] = ["processor", *table[0], "commit"]
    for processor, those in by_processor(rows):
        for name, kind in dict.fromkeys((row["name"], row["kind"]) for row in those):
            here = {(row["threads"], row["beam"]): row for row in those if (row["name"], row["kind"]) == (name, kind)}
            one = here["1", "4"]
            size, label = f"{int(one['installed_mb']):,}", PROGRAMS[name] + ", server" * (kind == "server")
            start = [label, size, one["seconds_to_first"]]
            cells = [f"{int(here[key]['words_per_second']):,}" if key in here else "–" for key in speeds]
            table.append([processor, *start, one["peak_mib"], *cells, commits(list(here.values()))])
    return markdown(table) + conditions(rows)


def firefox() -> str:
    """Return start, memory and speed with models of Firefox's sizes, a line per model and program."""
    rows = read(RESULTS / "firefox-cpu.csv")
    head = ["model", "program", "first line, s of processor time", "over the imports", "peak, MiB", "line by line"]
    table = [["processor", *head, "in a batch", "in a batch, 2 threads", "commit"]]
    for processor, those in by_processor(rows):
        for model, shortlist, engine in dict.fromkeys((row["model"], row["shortlist"], row["engine"]) for row in those):
            case = {"model": model, "shortlist": shortlist, "engine": engine}
            here = {row["threads"]: row for row in those if case.items() <= row.items()}
            one, two = here["1"], here.get("2")
            speeds = [one["pieces_per_second_alone"], one["pieces_per_second_together"]]
            speeds.append(two["pieces_per_second_together"] if two else "")
            cells = [f"{int(speed):,}" if speed else "–" for speed in speeds]
            label = f"{model}, shortlist" if shortlist == "True" else model
            first = one["processor_to_first"]
            over = f"{float(first) - float(imports):.2f}" if (imports := one.get("processor_imports")) else "–"
            start = [processor, label, FIREFOX_PROGRAMS[engine], first, over, one["peak_mib_alone"]]
            table.append([*start, *cells, commits(list(here.values()))])
    return markdown(table) + conditions(rows)


def web() -> str:
    """Return the speed of translation in WebAssembly, a line per model and program."""
    rows = read(RESULTS / "web-cpu.csv")
    head = [
        "processor",
        "model",
        "program",
        "download, MB",
        "first line, s",
        "again, s",
        "peak, MiB",
        "linear memory, MiB",
    ]
    names = ("download_mb", "first_cold_s", "first_warm_s", "peak_mib", "linear_memory_mib")
    speeds = ("pieces_per_second_alone", "pieces_per_second_together")
    table = [[*head, "line by line", "40 lines", "commit"]]
    for processor, those in by_processor(rows):
        for row in those:
            cells = [row[name] or "–" for name in names]
            cells += [f"{int(row[name]):,}" if row[name] else "–" for name in speeds]
            table.append([processor, row["model"], WEB_PROGRAMS[row["engine"]], *cells, commits([row])])
    return markdown(table) + conditions(rows)


def equal_texts() -> str:
    """Return how many translations of students equal Bergamot's, a line per student and program."""
    rows = read(RESULTS / "firefox-equal-cpu.csv")
    table = [
        ["processor", "student", "program", "lines", "equal", "others within 0.01 nats", "largest, nats", "commit"]
    ]
    for processor, those in by_processor(rows):
        for row in those:
            cells = [row[name] for name in ("lines", "equal", "within_0.01_nats", "largest_nats")]
            table.append([processor, row["student"], FIREFOX_PROGRAMS[row["engine"]], *cells, commits([row])])
    return markdown(table) + conditions(rows)


def listed(name: str, columns: dict[str, str]) -> str:
    """Return some columns of a CSV file, which may be missing, a line per row. `columns` are their headings by name."""
    rows = read(RESULTS / name) if (RESULTS / name).exists() else []
    table = [["processor", *columns.values(), "commit"]]
    for processor, those in by_processor(rows):
        table += [[processor, *(row[column] for column in columns), commits([row])] for row in those]
    return markdown(table) + conditions(rows)


T5_SPEED = {
    **{"model": "model", "method": "program", "threads": "threads", "tokens_per_second_alone": "line by line"},
    **{"tokens_per_second_together": "in a batch", "peak_mib": "peak, MiB"},
}
T5_EQUAL = {
    **{"method": "program", "bleu": "BLEU", "equal_texts": "the same as transformers", "equal_beams": "the same beams"},
    **{"largest_nats": "largest difference of scores, nats"},
}
T5_IMPORT = {
    **{"model": "model", "step": "step", "largest_shard_mib": "largest shard, MiB", "seconds": "s"},
    **{"peak_mib": "peak, MiB"},
}
LAUNCHES = {"n": "n", "part": "part", "us": "µs", "ratio": "ratio", "launches": "launches"}


def training() -> str:
    """Return the speed of training, a line per toolkit."""
    rows = read(RESULTS / "training-cpu.csv")
    table = [["processor", "toolkit", "target tokens per second", "loss", "steps", "commit"]]
    for processor, those in by_processor(rows):
        for row in those:
            cells = [row["method"], f"{int(row['tokens_per_second']):,}", row["loss"], row["steps"]]
            table.append([processor, *cells, commits([row])])
    return markdown(table) + conditions(rows)


def encoders() -> str:
    """Return seconds and memory of encoders of transformers, of the fastest own code and ours."""
    rows = read(RESULTS / "models-cpu.csv")
    table = [["processor", "encoder", "length", "own code", "relattn", "relattn ÷ own", "commit"]]
    for processor, those in by_processor(rows):
        sizes: dict[tuple[str, str, str], dict[str, Row]] = {}
        for row in those:
            sizes.setdefault((row["model"], row["size"], row["unit"]), {})[row["method"]] = row
        for (model, size, unit), methods in sizes.items():
            length = f"{int(size):,} × {int(size):,} pixels" if unit == "pixels" else f"{int(size):,} {unit}"
            own = [row for method, row in methods.items() if method != "relattn"]
            fastest = min((row for row in own if row["seconds"]), key=lambda row: float(row["seconds"]), default=None)
            ours = methods["relattn"]
            cells = [seconds_and_memory(fastest or next(iter(own), None)), seconds_and_memory(ours)]
            ratio = f"{float(ours['seconds']) / float(fastest['seconds']):.2f}" if fastest else "–"
            table.append([processor, model, length, *cells, ratio, commits(list(methods.values()))])
    return markdown(table) + conditions(rows)


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


def conditions(rows: Sequence[Row]) -> str:
    """Return a paragraph with the dates of rows, and what differs from the usual conditions; none without rows."""
    if not rows:
        return ""
    dates = sorted({row["date"] for row in rows if row.get("date")})
    parts = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
    for name, usual in (("threads", "2"), ("torch", "2.13.0")):
        values = sorted({row[name].removesuffix("+cpu") for row in rows})
        parts += [f"{name}: {', '.join(values)}"] if values != [usual] else []
    return f"\n({'; '.join(parts)}.)\n" if parts else ""


PACKAGES = ("disentangled-flash", "FlashDeBERTa")
PEERS = ("OpenNMT-py", "eole", "W2V-BERT", "VITS")
DECODERS = ("relattn early pytorch", "relattn on PyTorch"), ("relattn early", "relattn")
INT8_DECODERS = ("relattn", "relattn, float32"), ("relattn int8", "relattn, int8")
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
    "attention-summary": lambda: by_length("attention-cpu.csv", TIMES[:2], "time ratio", (32, 128, 512, 1024, 4096)),
    "peers-time": lambda: by_length("attention-cpu.csv", PEER_TIMES, "time ratio"),
    "attention-memory": lambda: by_length("attention-cpu.csv", MEMORY, "peak MiB"),
    "anchors": lambda: by_length("anchors-cpu.csv", ANCHORS, "time ratio"),
    "attention-gpu": lambda: by_length("attention-gpu.csv", GPU, "ms"),
    "layers-gpu": lambda: by_length("layers-gpu.csv", LAYERS, "ms"),
    "forms": lambda: by_length("family-cpu.csv", FORMS, "time ratio"),
    "dropout": lambda: by_length("plain-attention-cpu.csv", DROPOUT, "time ratio"),
    "training-step": lambda: by_length("train-step-cpu.csv", SCHEMES, "ratio"),
    "windows": lambda: by_length("windows-cpu.csv", WINDOWS, "us per token"),
    "small-calls": small_calls,
    "decoding": lambda: decoding("decoding-cpu.csv", DECODERS, ("CTranslate2", ("ctranslate2",))),
    "int8-decoding": lambda: decoding("decoding-int8-cpu.csv", INT8_DECODERS, ("CTranslate2, int8", CTRANSLATE2_INT8)),
    "int8-encoders": int8_encoders,
    "encoders": encoders,
    "engines": engines,
    "firefox": firefox,
    "firefox-equal": equal_texts,
    "web": web,
    "t5": lambda: listed("t5-cpu.csv", T5_SPEED),
    "t5-equal": lambda: listed("t5-equal-cpu.csv", T5_EQUAL),
    "t5-import": lambda: listed("t5-import-cpu.csv", T5_IMPORT),
    "training": training,
    "launches": lambda: listed("launches-cpu.csv", LAUNCHES),
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
