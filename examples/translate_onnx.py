"""Greedy translation with onnxruntime: python examples/translate_onnx.py DIRECTORY < in.txt > out.txt

DIRECTORY is the output of `relattn-mt export onnx`. The script requires numpy, onnxruntime and sentencepiece, but
neither PyTorch nor relattn.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import sentencepiece

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before the import, which writes an identifier into the home directory
import onnxruntime


class Model:
    """Encoder, decoder and tokenizer of an exported model."""

    def __init__(self, directory: Path) -> None:
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(directory / name)) for name in ("encoder.onnx", "decoder.onnx")
        )
        files = [directory / name for name in ("tokenizer.model", "tokenizer.target.model", "vocabulary.json")]
        source, target = files[0], files[1] if files[1].exists() else files[0]
        self.source, self.target = (sentencepiece.SentencePieceProcessor(model_file=str(x)) for x in (source, target))
        # of an imported model, whose ids are not those of SentencePiece
        self.vocabulary = json.loads(files[2].read_text(encoding="utf-8")) if files[2].exists() else None

    def translate(self, line: str) -> str:
        """Return the translation of a line. A blank line gives an empty translation."""
        return self.decode(self.search(self.encode(line))) if line.strip() else ""

    def encode(self, line: str) -> list[int]:
        """Return the ids of a line's pieces, without special tokens."""
        if self.vocabulary is None:
            return self.source.encode(line)
        ids = {piece: i for i, piece in enumerate(self.vocabulary["source"])}
        unknown = ids[self.vocabulary["unknown"]]
        return [ids.get(piece, unknown) for piece in self.source.encode(line, out_type=str)]

    def decode(self, tokens: list[int]) -> str:
        """Return the text of a translation."""
        if self.vocabulary is None:
            return self.target.decode(tokens)
        special = {self.vocabulary["unknown"], *self.vocabulary["languages"].values()}
        pieces = [self.vocabulary["target"][i] for i in tokens]
        return self.target.decode([piece for piece in pieces if piece not in special])

    def search(self, pieces: list[int]) -> list[int]:
        """Return the pieces of the translation by greedy search, up to the end piece or the maximum length."""
        config, search = self.config, self.config["search"]
        src = np.array([[*config["src_begin"], *pieces, *config["src_end"]]])
        lengths = np.array([src.shape[1]])
        source_keys, source_values = self.encoder.run(None, {"src": src, "src_lengths": lengths})
        source = {"src_lengths": lengths, "source_keys": source_keys, "source_values": source_values}
        # (layers, batch, heads, length, head_dim); the cache starts empty
        keys = values = np.zeros((config["layers"], 1, config["heads"], 0, config["head_dim"]), dtype=np.float32)
        max_length = max(1, int(search["max_length_ratio"] * len(pieces)) + search["max_length_extra"])
        given: list[int] = [config["bos"], *config["tgt_begin"]]
        max_length = min(max_length, (config["max_length"] or np.inf) - len(config["tgt_begin"]))
        translation: list[int] = []
        while len(translation) + 1 < max_length:
            for token in given:
                inputs = {"tokens": np.array([[token]]), "keys": keys, "values": values, **source}
                log_probs, keys, values = self.decoder.run(None, inputs)
            log_probs[0, config["banned"]] = -np.inf
            given = [int(log_probs[0].argmax())]
            if given == [config["eos"]]:
                break
            translation += given
        return translation


if __name__ == "__main__":
    model = Model(Path(sys.argv[1]))
    for text in sys.stdin:
        print(model.translate(text.rstrip("\n")), flush=True)
