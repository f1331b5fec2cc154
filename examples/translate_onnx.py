"""Greedy translation with onnxruntime: python examples/translate_onnx.py DIRECTORY < in.txt > out.txt

DIRECTORY is the output of `relattn export onnx`. The script requires numpy, onnxruntime and sentencepiece, but neither
PyTorch nor relattn.
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
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))

    def translate(self, line: str) -> str:
        """Return the translation of a line. A blank line gives an empty translation."""
        return self.tokenizer.decode(self.search(self.tokenizer.encode(line))) if line.strip() else ""

    def search(self, pieces: list[int]) -> list[int]:
        """Return the pieces of the translation by greedy search, up to the end piece or the maximum length."""
        config, search = self.config, self.config["search"]
        src = np.array([[*pieces, config["eos"]]])
        lengths = np.array([src.shape[1]])
        source_keys, source_values = self.encoder.run(None, {"src": src, "src_lengths": lengths})
        source = {"src_lengths": lengths, "source_keys": source_keys, "source_values": source_values}
        # (layers, batch, heads, length, head_dim); the cache starts empty
        keys = values = np.zeros((config["layers"], 1, config["heads"], 0, config["head_dim"]), dtype=np.float32)
        max_length = max(1, int(search["max_length_ratio"] * len(pieces)) + search["max_length_extra"])
        max_length = min(max_length, config["max_length"] or max_length)
        token: int = config["bos"]
        translation: list[int] = []
        while len(translation) + 1 < max_length:
            inputs = {"tokens": np.array([[token]]), "keys": keys, "values": values, **source}
            log_probs, keys, values = self.decoder.run(None, inputs)
            log_probs[0, [config["pad"], config["bos"]]] = -np.inf
            token = int(log_probs[0].argmax())
            if token == config["eos"]:
                break
            translation.append(token)
        return translation


if __name__ == "__main__":
    model = Model(Path(sys.argv[1]))
    for text in sys.stdin:
        print(model.translate(text.rstrip("\n")), flush=True)
