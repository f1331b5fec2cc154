"""Preparation of a corpus: filter it part by part, and join the parts.

    out/train.en.gz, out/train.de.gz        training text
    out/prepared.json                       sources, rules, statistics and checksums; written last, so it marks a
                                            finished directory
    out/.relattn-preparing/settings.json    what is prepared, from which files and by which rules; written first
    out/.relattn-preparing/part-00000/      pairs kept of the first million, their digests and statistics

A part is written completely or not at all. After an interruption, the next call continues after the last part.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from itertools import compress, islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from relattn_mt.config import CleaningConfig, as_dict, differences
from relattn_mt.corpus.dedup import SeenPairs
from relattn_mt.corpus.filter_pool import FilteredChunk, filter_pool, split_chunks
from relattn_mt.corpus.filters import REASONS, Cleaner, has_known_script
from relattn_mt.corpus.report import FilterStats
from relattn_mt.corpus.sources import Source
from relattn_mt.support.console import shows_progress
from relattn_mt.support.errors import InputError, reading, require, same_language
from relattn_mt.support.files import file_digest, putting, remove, write_atomically
from relattn_mt.support.locking import LOCK, locked
from relattn_mt.support.types import Fields
from relattn_mt.tokens.text_files import read_lines

RECORD = "prepared.json"
_WORK = ".relattn-preparing"
_LEVEL = 5  # of gzip: nearly the size of the highest level, in a third of the time
_log = logging.getLogger(__name__)


def prepare(
    corpus: Source, out: Path, config: CleaningConfig, *, valid: int = 0, processes: int = 1, part: int = 1_000_000
) -> FilterStats:
    """Prepare a corpus in a directory, or continue a preparation that was interrupted, and return its statistics.

    The files depend only on the corpus and the rules, not on the number of processes or on interruptions.

    Args:
        corpus: What to prepare.
        out: Output directory; it must not exist, be empty, or hold a preparation of the same corpus by the same rules.
        config: Rules that decide which pairs are kept.
        valid: Number of pairs to set aside for validation, drawn from those that are kept.
        processes: Number of processes that filter pairs; with more than one, this process only reads and writes.
        part: Number of pairs per part.

    Raises:
        InputError: The languages are the same, the corpus cannot be read, every pair is dropped, or the
            directory is in other use or cannot be written.
    """
    src_lang, tgt_lang = corpus.languages  # which name the files
    different = not same_language(src_lang, tgt_lang)
    require(different, f"the source and the target must have different languages, got {src_lang} and {tgt_lang}")
    require(out.is_dir() or not out.exists(), f"{out}: the output must be a directory, got a file")
    with locked(out, "preparing this directory"):
        record = _read_record(out / RECORD, "settings", "stats", "files")
        work = out / _WORK
        started = record or _read_record(work / "settings.json", "settings")
        if started is None and (other_files := {entry.name for entry in out.iterdir()} - {LOCK, _WORK}):
            raise InputError(f"{out}: the output must be an empty directory, got one with {min(other_files)}")
        for code in corpus.languages:
            if config.min_script and not has_known_script(code):
                _log.warning("the script of language %s is unknown, so that min_script has no effect on it", code)
        settings = {
            **corpus.identity,
            "languages": list(corpus.languages),
            "cleaning": as_dict(config),
            "pairs per part": part,
            "valid": valid,
        }
        if started is not None and (changes := differences(started["settings"], settings)):
            hint = "choose another --out" if record is not None else f"to start over, remove {work}"
            raise InputError(f"{out}: was prepared from other text or by other rules: {'; '.join(changes)}; {hint}")
        if record is not None:
            if not (changes := _changed_files(out, record)):
                remove(work)
                _log.info("%s was prepared before, from the same text by the same rules", out)
                return FilterStats(**record["stats"])
            _log.warning("%s: missing or changed: %s; preparing the text again", out, ", ".join(changes))
        progress = {"settings": settings, "origin": corpus.origin}
        work.mkdir(exist_ok=True)
        write_atomically(work / "settings.json", json.dumps(progress).encode())
        held_out = [line for path in corpus.exclude for line in read_lines(path)]
        make_cleaner = partial(Cleaner, config, corpus.languages, held_out)
        seen = None if config.keep_duplicates else SeenPairs()
        stats = _write_parts(corpus, work, make_cleaner, seen, processes, part)
        if not stats.kept:
            remove(work)  # so that a corrected command can start
            dropped = [f"{count:,} {name} ({REASONS[name]})" for name, count in stats.dropped.items() if count]
            raise InputError(f"{out}: no pair is left; dropped: {'; '.join(dropped)}")
        if valid >= stats.kept:
            remove(work)
            raise InputError(
                f"valid must be less than the number of pairs that are kept, {stats.kept:,}, got {valid:,}"
            )
        _finish(out, {**progress, "stats": asdict(stats)})
        remove(work)
    return stats


def _write_parts(
    corpus: Source, work: Path, make_cleaner: partial[Cleaner], seen: SeenPairs | None, processes: int, part: int
) -> FilterStats:
    """Write the parts that do not exist yet, and return the statistics of all."""
    stats = FilterStats()
    finished_parts = _parts(work)
    total = corpus.identity["pairs"]
    for path in finished_parts:
        stats.add(_read_part(path, seen))
    with (
        filter_pool(processes, make_cleaner) as filter_chunks,
        tqdm(
            corpus.pairs(stats.read),
            total=total,
            initial=stats.read,
            unit="pair",
            file=sys.stderr,
            disable=not shows_progress(),
        ) as bar,
    ):
        pairs = iter(bar)  # once: a loop over the bar closes it
        for index in range(len(finished_parts), -(-total // part)):
            chunks = split_chunks(islice(pairs, part), first=index * part + 1)
            stats.add(_write_part(work / f"part-{index:05}", filter_chunks(chunks), seen))
    return stats


def _parts(work: Path) -> list[Path]:
    return sorted(work.glob("part-*"))


def _write_part(path: Path, chunks: Iterable[FilteredChunk], seen: SeenPairs | None) -> FilterStats:
    """Write a part without duplicates, which are kept if `seen` is None, and return its statistics."""
    stats = FilterStats()
    digests = [np.array([], dtype=np.uint64)]
    with putting(path) as aside:
        aside.mkdir()
        src_file, tgt_file = (
            gzip.GzipFile(aside / name, "wb", compresslevel=_LEVEL, mtime=0) for name in ("src.gz", "tgt.gz")
        )
        with src_file, tgt_file:
            for chunk in chunks:
                new = np.ones(len(chunk.digests), dtype=bool) if seen is None else seen.add(chunk.digests)
                for number, src, tgt in compress(chunk.pairs, ~new):
                    chunk.stats.drop("duplicate", number, src.decode(), tgt.decode())
                stats.add(chunk.stats)
                stats.kept += int(new.sum())
                digests.append(chunk.digests[new])
                kept = list(compress(chunk.pairs, new))
                src_file.write(b"".join(b"%b\n" % src for _, src, _ in kept))
                tgt_file.write(b"".join(b"%b\n" % tgt for _, _, tgt in kept))
        np.save(aside / "digests.npy", np.concatenate(digests))
        (aside / "stats.json").write_text(json.dumps(asdict(stats)), encoding="utf-8")
    return stats


def _read_part(path: Path, seen: SeenPairs | None) -> FilterStats:
    """Return the statistics of a part that was written before, and add its pairs to `seen`."""
    with reading(path, "not a part of a preparation"):
        if seen is not None:
            seen.add(np.load(path / "digests.npy"))
        return FilterStats(**json.loads((path / "stats.json").read_bytes()))


def _finish(out: Path, record: Fields) -> None:
    """Join the parts, and write the other files of a finished directory, prepared.json last."""
    lines = {}
    kept = record["stats"]["kept"]
    set_aside = set(random.Random(1).sample(range(kept), record["settings"]["valid"]))
    for side, language in zip(("src", "tgt"), record["settings"]["languages"], strict=True):
        name = f"train.{language}.gz"
        with putting(out / name) as aside, aside.open("wb") as joined_file:
            for part in _parts(out / _WORK):
                with (part / f"{side}.gz").open("rb") as file:  # concatenated gzip files are a gzip file
                    shutil.copyfileobj(file, joined_file)
        lines[name] = kept - len(set_aside)
        if set_aside:
            text: list[bytes] = []
            with putting(out / name) as aside, aside.open("wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, 0) as file:
                for i, line in enumerate(read_lines(out / name)):
                    (text.append if i in set_aside else file.write)(f"{line}\n".encode())
            lines[f"valid.{language}"] = len(text)
            write_atomically(out / f"valid.{language}", b"".join(text))
    files = {name: {"lines": count, "sha256": file_digest(out / name)} for name, count in lines.items()}
    record = {**record, "files": files}
    write_atomically(out / RECORD, (json.dumps(record, ensure_ascii=False, indent=1) + "\n").encode())


def _read_record(path: Path, *fields: str) -> dict[str, Fields] | None:
    """Return these objects of a JSON file; None if it does not exist."""
    if not path.exists():
        return None
    with reading(path, "not a record of a preparation"):
        content = json.loads(path.read_bytes())
        return {name: dict(content[name]) for name in fields}


def _changed_files(out: Path, record: Fields) -> list[str]:
    """Return the names of the files that are missing or differ from what was written."""
    files = record["files"].items()
    return [name for name, file in files if not (out / name).is_file() or file_digest(out / name) != file["sha256"]]
