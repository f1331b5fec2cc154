"""Lines translated by onnxruntime alone, greedily: python examples/translate_onnx.py DIRECTORY < in.txt > out.txt

The directory is one of `relattn export onnx`. This is all it takes to use it: numpy, onnxruntime and sentencepiece, and
neither PyTorch nor relattn.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import sentencepiece


class Model:
    """The two graphs of a directory, and its tokenizer."""

    def __init__(self, directory: Path) -> None:
        self.about = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(str(directory / name)) for name in ("encoder.onnx", "decoder.onnx")
        )
        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))

    def translate(self, line: str) -> str:
        """The translation of a line; a blank one's is empty."""
        return self.tokenizer.decode(self.search(self.tokenizer.encode(line))) if line.strip() else ""

    def search(self, pieces: list[int]) -> list[int]:
        """The pieces of the translation: always the likeliest next one, up to the end or the limit of length."""
        about, search = self.about, self.about["search"]
        src = np.array([[*pieces, about["eos"]]])
        lengths = np.array([src.shape[1]])
        keys, values = self.encoder.run(None, {"src": src, "src_lengths": lengths})
        source = {"src_lengths": lengths, "source_keys": keys, "source_values": values}
        seen = np.zeros((about["layers"], 1, about["heads"], 0, about["head_dim"]), dtype=np.float32)
        seen_keys, seen_values = seen, seen
        limit = max(1, int(search["max_length_ratio"] * len(pieces)) + search["max_length_extra"])
        limit = min(limit, about["max_length"] or limit)
        token: int = about["bos"]
        found: list[int] = []
        while len(found) + 1 < limit:
            given = {"tokens": np.array([[token]]), "keys": seen_keys, "values": seen_values, **source}
            log_probs, seen_keys, seen_values = self.decoder.run(None, given)
            log_probs[0, [about["pad"], about["bos"]]] = -np.inf
            token = int(log_probs[0].argmax())
            if token == about["eos"]:
                break
            found.append(token)
        return found


if __name__ == "__main__":
    model = Model(Path(sys.argv[1]))
    for text in sys.stdin:
        print(model.translate(text.rstrip("\n")), flush=True)
