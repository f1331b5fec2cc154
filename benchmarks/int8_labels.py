"""Labels that int8 changes: a tagger and a sentence classifier, trained here, and evaluated in every kind of int8.

    nice -n 19 python -m benchmarks.int8_labels --data FOLDER

Both are DeBERTa v3 models with 4 layers of 256 dimensions and one token per word. They are trained on the English Web
Treebank of Universal Dependencies: parts of speech of words, and the source of a sentence (blog, email, review, …).
They are evaluated on a part of its development set as they are, and with outlier channels: two of every LayerNorm and
one of every head's values times 30, and the columns that read them divided by 30, which changes nothing in float32.
Scores are F1, averaged over labels. Seconds are the processor time of this part, one sentence at a time by all
methods in turn, on one thread.
"""

import gzip
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import torch
from relattn.integrations import transformers as faster
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, DebertaV2ForTokenClassification

from benchmarks import measure
from benchmarks.measure import Row, record

WORDS, FACTOR, CHANNELS = 8000, 30.0, [5, 77]
KEY = ("model", "weights", "method", "device", "threads")
Sentence = tuple[list[str], list[str], str]  # words, their tags, the source of the sentence


def sentences(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a file of CoNLL-U."""
    for block in gzip.decompress(path.read_bytes()).decode().strip().split("\n\n"):
        lines = block.splitlines()
        source = next(line for line in lines if line.startswith("# sent_id")).split()[3].split("-")[0]
        fields = [line.split("\t") for line in lines if line.split("\t")[0].isdigit()]
        yield [field[1] for field in fields][:128], [field[3] for field in fields][:128], source


class Task:
    """A model to train, with its examples: ids of words and labels, one label per word or one per sentence."""

    def __init__(self, name: str, folder: Path, every: int = 1) -> None:
        read = {part: list(sentences(folder / f"en_ewt-ud-{part}.conllu.gz")) for part in ("train", "dev")}
        counts = Counter(word for words, _, _ in read["train"] for word in words)
        ids = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS), 2)}  # 0: padding, 1: unknown
        read["dev"] = read["dev"][::every]
        self.name, self.is_tagger = name, name == "tagger"
        labels = sorted({label for sentence in read["train"] for label in self._labels(sentence)})
        self.examples = {
            part: [
                (
                    torch.tensor([[ids.get(word, 1) for word in sentence[0]]]),
                    torch.tensor([[labels.index(label) for label in self._labels(sentence)]]),
                )
                for sentence in given
            ]
            for part, given in read.items()
        }
        torch.manual_seed(1)
        config = DebertaV2Config(
            vocab_size=WORDS + 2, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
            relative_attention=True, position_buckets=32, max_position_embeddings=128, share_att_key=True,
            pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", position_biased_input=False, type_vocab_size=0,
            num_labels=len(labels), pooler_hidden_size=256,
        )  # fmt: skip
        self.model = (DebertaV2ForTokenClassification if self.is_tagger else DebertaV2ForSequenceClassification)(config)

    def _labels(self, sentence: Sentence) -> list[str]:
        return sentence[1] if self.is_tagger else [sentence[2]]

    def train(self, epochs: int) -> None:
        """Train with batches of sentences of one length, shuffled."""
        examples, rate = self.examples["train"], 4e-4
        optimizer = torch.optim.AdamW(self.model.parameters(), rate)
        batches: dict[int, list[list[int]]] = {}
        for number in torch.randperm(len(examples)).tolist():
            of_length = batches.setdefault(examples[number][0].shape[1], [[]])
            if len(of_length[-1]) == 32:
                of_length.append([])
            of_length[-1].append(number)
        plan = [batch for of_length in batches.values() for batch in of_length]
        total, step = epochs * len(plan), 0
        with faster.enable(self.model.train()):
            for _ in range(epochs):
                for index in torch.randperm(len(plan)).tolist():
                    words, labels = (torch.cat(x) for x in zip(*(examples[i] for i in plan[index]), strict=True))
                    step += 1
                    optimizer.param_groups[0]["lr"] = rate * min(step / 100, 1 - step / (total + 1))
                    optimizer.zero_grad()
                    self.model(words, labels=labels if self.is_tagger else labels[:, 0]).loss.backward()
                    optimizer.step()
        self.model.eval()

    def f1(self, predicted: list[Tensor]) -> float:
        """Return the F1 of predicted labels, averaged over labels."""
        found, right = torch.cat(predicted), torch.cat([labels[0] for _, labels in self.examples["dev"]])
        scores = [
            2 * ((found == label) & (right == label)).sum() / ((found == label).sum() + (right == label).sum())
            for label in right.unique()
        ]
        return float(torch.stack(scores).mean())


def put_in_outliers(model: Any) -> None:
    """Multiply channels of every LayerNorm and of every head's values, and divide the weights that read them."""
    scale = torch.ones(256)
    scale[CHANNELS] = FACTOR
    value_scale = torch.ones(4, 64)
    value_scale[:, CHANNELS[0]] = FACTOR
    encoder = model.deberta.encoder
    parts = [layer.attention for layer in encoder.layer]
    norms = [model.deberta.embeddings.LayerNorm, encoder.LayerNorm, *(part.output.LayerNorm for part in parts)]
    readers = [getattr(part.self, f"{name}_proj") for part in parts for name in ("query", "key", "value")]
    readers += [layer.intermediate.dense for layer in encoder.layer]
    readers.append(model.pooler.dense if hasattr(model, "pooler") else model.classifier)
    for norm in (*norms, *(layer.output.LayerNorm for layer in encoder.layer)):
        norm.weight.data *= scale
        norm.bias.data *= scale
    for reader in readers:
        reader.weight.data /= scale
    for layer in encoder.layer:  # what the residual connection adds
        for output in (layer.output, layer.attention.output):
            output.register_forward_pre_hook(lambda _, inputs: (inputs[0], inputs[1] / scale))
    for part in parts:
        part.self.value_proj.weight.data *= value_scale.flatten()[:, None]
        part.self.value_proj.bias.data *= value_scale.flatten()
        part.output.dense.weight.data /= value_scale.flatten()


class Logits(nn.Module):
    """A model that returns its logits only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.model(words).logits
        return logits


def onnx_runtime(model: nn.Module, folder: Path) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return functions that run the model with ONNX Runtime in int8, per tensor and per channel."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    length = {1: torch.export.Dim("length", min=2, max=200)}
    exported = str(folder / "float32.onnx")
    example = torch.randint(2, 100, (1, 30))
    torch.onnx.export(
        Logits(model).eval(), (example,), exported, dynamo=True, verbose=False, input_names=["words"],
        dynamic_shapes=(length,),
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    runs: dict[str, Any] = {}
    for per_channel in (False, True):
        path = folder / f"{per_channel}.onnx"
        quantize_dynamic(exported, path, weight_type=QuantType.QInt8, per_channel=per_channel)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        runs[f"ONNX Runtime int8, per {'channel' if per_channel else 'tensor'}"] = lambda words, session=session: (
            torch.from_numpy(session.run(None, {"words": words.numpy()})[0])
        )
    return runs


def rows_of(task: Task, with_outliers: bool) -> list[Row]:
    """Return one row per kind of int8."""
    own = deepcopy(task.model)
    if with_outliers:
        put_in_outliers(own)
    ours, ours_in_int8 = deepcopy(own), deepcopy(own)
    faster.enable(ours)
    faster.enable(ours_in_int8, linear="int8")
    theirs = torch.ao.quantization.quantize_dynamic(deepcopy(own), {nn.Linear}, dtype=torch.qint8)
    models = {"own code": own, "relattn": ours, "relattn int8": ours_in_int8, "PyTorch dynamic int8": theirs}
    runs: dict[str, Any] = {method: Logits(model) for method, model in models.items()}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        with torch.inference_mode(False), torch.no_grad():
            runs |= onnx_runtime(own, Path(folder))
        for run in runs.values():
            run(task.examples["dev"][0][0])
        logits, seconds = {method: list[Tensor]() for method in runs}, dict.fromkeys(runs, 0.0)
        for (words, _), (method, run) in product(task.examples["dev"], runs.items()):
            start = time.process_time()
            logits[method].append(run(words).view(-1, own.num_labels))
            seconds[method] += time.process_time() - start
    labels = {method: [x.argmax(-1) for x in given] for method, given in logits.items()}
    expected, exact = torch.cat(labels["own code"]), torch.cat(logits["own code"])
    return [
        {
            "model": task.name, "weights": "outliers" if with_outliers else "as trained", "method": method,
            "labels": len(expected), "changed": int((torch.cat(labels[method]) != expected).sum()),
            "logit error": f"{(torch.cat(logits[method]) - exact).pow(2).mean().sqrt() / exact.std():.5f}",
            "F1": f"{task.f1(labels[method]):.4f}", "seconds": f"{seconds[method]:.3g}",
        }
        for method in runs
    ]  # fmt: skip


def main() -> None:
    parser = measure.command("int8_labels", __doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the treebank's files")
    parser.add_argument("--every", type=int, default=4, help="evaluate every Nth sentence (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the training set (%(default)s)")
    parser.add_argument("--weights", type=Path, default=Path("build/int8_labels"), help="folder of trained weights")
    arguments = measure.parse(parser, "int8-labels-cpu.csv", threads=1)
    arguments.weights.mkdir(parents=True, exist_ok=True)
    for name in ("tagger", "classifier"):
        task, path = Task(name, arguments.data, arguments.every), arguments.weights / f"{name}.pt"
        if path.exists():
            task.model.load_state_dict(torch.load(path))
            task.model.eval()
        else:
            task.train(arguments.epochs)
            torch.save(task.model.state_dict(), path)
        for with_outliers in (False, True):
            record(arguments, rows_of(task, with_outliers), KEY)


if __name__ == "__main__":
    main()
