"""Mutation check of the tests: apply one small error at a time to the library, and run the tests that should catch it.

    python tests/mutants.py                          # all mutations, about half an hour on two cores
    python tests/mutants.py --only serve/ --only nn.py
    python tests/mutants.py --list                   # check the texts of the mutations and list them, without tests

The tests run in temporary copies of the tree, so the checkout never changes. They must pass without a mutation, which
is checked first. A mutation in C recompiles the kernels of the one processor level that this machine loads.
A mutation is also caught if its tests crash or do not end. The exit code is 1 if a mutation survives.
"""

# ruff: noqa: T201

from __future__ import annotations

import argparse
import os
import queue
import re
import resource
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A line "@ directory tests…" names a directory below src/relattn, and the tests below tests/ that should catch the
# mutations that follow. These are lines "file: old  =>  new"; the old text must occur exactly once in the file.
MUTATIONS = r"""
@ . test_reference.py test_functional.py test_backends.py test_windows.py
positions.py: (distance > right), -1)  =>  (distance >= right), -1)
positions.py: max(0, keys - 1 - least)  =>  max(0, keys - 2 - least)
positions.py: (position - position % call.chunk)  =>  position
positions.py: call.offset, device) <= 0  =>  call.offset, device) < 0
call.py: window_right >= farthest[1] + size - 1  =>  window_right >= farthest[1]
call.py: clips and (left < window_left + size - 1 or right < window_end)  =>  clips and left < window_left + size - 1
call.py: query_offset = keys - queries  =>  query_offset = 0
call.py: if scale is None else scale  =>  if not scale else scale
call.py: slice(left - reach[0], left + reach[1] + 1)  =>  slice(right - reach[0], right + reach[1] + 1)
call.py: return 1.0 / (1.0 - dropout_p) if dropout_p < 1.0  =>  return 1.0 if dropout_p < 1.0
checks.py: if least < -1 or most >= labels:  =>  if least < -1 or most > labels:
checks.py: return x.to(SIGNED[x.dtype]) if x.dtype in SIGNED else x  =>  return x
@ . test_cache.py test_nn.py test_windows.py
cache.py: rooms, self.appended = self.rooms, True  =>  rooms = self.rooms
cache.py: self.lengths - count  =>  self.lengths
cache.py: lengths = self.lengths + n  =>  lengths = self.lengths
cache.py: self.lengths.index_copy(0, to, self.lengths[rows])[:keep]  =>  self.lengths[:keep]
nn.py: shortest - shortest % self.chunk_size - self.window_left  =>  shortest - self.window_left + 1
nn.py: lengths - cache.dropped  =>  lengths
nn.py: self.dropout if self.training else 0.0  =>  self.dropout
nn.py: bound = (6.0 / (labels + dim)) ** 0.5  =>  bound = (3.0 / (labels + dim)) ** 0.5
@ . test_dense.py test_backends.py test_functional.py
positions.py: call.query.masked_fill(padding, 0.0), rel_query=rel_query  =>  call.query.masked_fill(padding, 0.0)
@ backends test_reference.py
reference.py: vectors_of_pairs(call.rel_value, label)  =>  vectors_of_pairs(call.rel_value.flip(-2), label)
@ backends/dense test_dense.py test_backends.py test_functional.py
__init__.py: return ~visible & live, live  =>  return ~visible, live
__init__.py: call.query_offset >= 0  =>  call.query_offset >= -1
attention.py: beta = part.keep_scale  =>  beta = 1.0
attention.py: ds *= part.kept  =>  pass
diagonals.py: highest >= end  =>  highest > end
labels.py: self.label < 0, labels - 1, self.label  =>  self.label < 0, 0, self.label
@ backends test_native.py test_backends.py test_functional.py
autograd.py: x.select(dim, number)  =>  x.select(0, number)
custom_ops.py: torch.randint(2**63 - 1, (), device=call.query.device)  =>  torch.full((), 7, device=call.query.device)
@ backends test_triton.py test_backends.py test_functional.py
capabilities.py: 1 <= dim <= self.head_dims  =>  1 <= dim < self.head_dims
@ backends/native test_native.py test_backends.py test_functional.py test_windows.py
strips.h: return label >= 0 && label < a->labels  =>  return label > 0 && label < a->labels
strips.h: window_end(a, position + live - 1), 0, valid_keys(a, b))  =>  window_end(a, position + live - 1), 0, a->keys)
strips.h: chunk_start(a, position) - a->window_left;  =>  chunk_start(a, position) - a->window_left + 1;
strips.h: chunk_start(a, position) + a->window_right + 1;  =>  chunk_start(a, position) + a->window_right;
strips.h: clamped(a->left + begin - (position + queries - 1)  =>  clamped(a->left + begin - position
strips.h: window_begin(a, position + at->rows - 1) > at->key;  =>  window_begin(a, position) > at->key;
key_strips.h: labels.first + ROWS, 0, labels.count + ROWS)  =>  labels.first, 0, labels.count + ROWS)
key_strips.h: fold_margins(a->clips, masses, width, ROWS, count, labels);  =>  (void)masses;
strips.h: a->queries + at->first + r;  =>  a->queries + r;
forward.h: AT(w->sums + r * LANES) *= shrink;  =>  AT(w->sums + r * LANES) *= 1;
forward.h: sum += AT(query.data + r * query.row + i)  =>  sum += AT(query.data + i)
backward.h: (weight * (dp + dp_edge) - p * delta) * a->scale  =>  weight * (dp + dp_edge - delta) * a->scale
backward.h: d_rel_value + (tables * a->labels + at.labels.first) * wide  =>  d_rel_value + tables * a->labels * wide
rows.h: nearest_even = bits + 0x7FFF + ((bits >> 16) & 1);  =>  nearest_even = bits;
rows.h: t->head == head && t->labels.first == labels.first &&  =>  t->head == head &&
products.h: _mm512_or_si512(evens, _mm512_slli_epi32(odds, 16))  =>  _mm512_or_si512(odds, _mm512_slli_epi32(evens, 16))
@ backends/native test_native.py test_functional.py
operators.py: with_contiguous_rows(x.expand(*x.shape[:-1], pairs[-1])).expand(pairs)  =>  x.expand(pairs)
operators.py: None if x is None else x.long().contiguous()  =>  None if x is None else x.contiguous()
operators.py: (ctypes.byref(self.arguments)) != 0:  =>  (ctypes.byref(self.arguments)) == -1:
@ backends/native test_levels.py test_native.py
library.py: "relattn_checksum") or checksum_of(library) != zlib.crc32(header):  =>  "relattn_checksum"):
@ backends/triton test_triton.py
forward.py: weight = weight / row_sum  =>  weight = weight / 1.0
forward.py: row, pairs, mass_after * inverse  =>  row, pairs, mass_before * inverse
forward.py: if first_key + COLS > end:  =>  if first_key > end:
backward.py: keep_scale * dp - shifted_delta, -delta)  =>  keep_scale * dp - shifted_delta, -shifted_delta)
backward.py: tl.where(is_after, DELTA_AFTER, DELTA_BEFORE)  =>  tl.where(is_after, DELTA_BEFORE, DELTA_AFTER)
labels.py: slot % 2 * (pairs.options.shift + pairs.options.labels)  =>  slot % 2 * pairs.options.labels
pairs.py: offset = tl.minimum(tl.maximum(offset, -(2**30)), 2**30).to(tl.int32)  =>  offset = offset.to(tl.int32)
plan.py: max(sizes.right + sizes.is_causal, start)  =>  max(sizes.right, start)
operators.py: .rows + 1 - problem.offset  =>  .rows - problem.offset
__init__.py: None if call.rel_query is None else -call.rel_query  =>  call.rel_query
@ backends/triton test_selftest.py
selftest.py: if not error <= allowed:  =>  if error > allowed:
@ backends test_backends.py
reference.py: vectors_of_pairs(call.pos_query, label)  =>  vectors_of_pairs(call.pos_query.flip(-2), label)
@ backends test_functional.py
reference.py: e = e + call.bias  =>  e = e + call.scale * call.bias
@ . test_functional.py
call.py: (1, 1, 1, 1), 1.0 / scale,  =>  (1, 1, 1, 1), 1.0,
call.py: torch.cat((rel_key, column), dim=-1)  =>  torch.cat((rel_key, column.flip(-2)), dim=-1)
@ . test_multihead.py
multihead.py: is_causal=is_causal, query_offset=0,  =>  is_causal=is_causal,
multihead.py: options["bias"] + added if  =>  added if
multihead.py: _qkv_same_embed_dim = False  =>  _qkv_same_embed_dim = True
@ backends/dense test_backends.py
attention.py: pairs += part.bias  =>  pairs += part.bias * part.scale
attention.py: ds.sum_to_size(out[4].shape)  =>  part.scale * ds.sum_to_size(out[4].shape)
attention.py: part.keys_of_heads(), part.query_table) * part.scale  =>  part.keys_of_heads(), part.query_table)
attention.py: times_table(ds_of_keys, part.query_table * part.scale)  =>  times_table(ds_of_keys, part.query_table)
@ backends/native test_native.py test_backends.py
key_strips.h: else if (label >= a->labels) label = -1;  =>  ;
key_strips.h: runs[i][l - r] += from[i * SQUARE + l];  =>  runs[i][l] += from[i * SQUARE + l];
backward.h: ((first + ROWS) % TASK_ROWS == 0 || first + ROWS >= a->queries)  =>  first + ROWS >= a->queries
@ backends/triton test_triton.py
backward.py: tl.where(is_after, own_after, own_before)  =>  tl.where(is_after, own_before, own_after)
backward.py: tl.where(column < valid_keys, ds_after, 0.0)  =>  ds_after
backward.py: ds_before += tl.where(is_after, 0.0, tile_sum)  =>  ds_before += tile_sum
labels.py: tl.where(is_before, before, after)[None, :]  =>  tl.where(is_before, after, before)[None, :]
labels.py: distance = -distance  =>  pass
plan.py: reach = max(reach, labels_reached(sizes.queries  =>  reach = min(reach, labels_reached(sizes.queries
operators.py: [block * cols - last for  =>  [block * cols + last for
__init__.py: None if call.pos_query is None else -call.pos_query  =>  call.pos_query
@ backends/triton test_selftest.py
availability.py: pos_query=call.pos_query is not None,  =>  pos_query=False,
@ integrations/transformers integrations/test_patching.py
patching.py: if self.forward is None or self.settings or  =>  if self.forward is None or
patching.py: if isinstance(value, MethodType) and value.__func__ is old:  =>  if False:
patching.py: self.settings.discard(setting)  =>  pass
patching.py: if unit and module not in inside and  =>  if False and
patching.py: patched.install()  =>  pass
family.py: if not worst <= TOLERANCE * largest:  =>  if False:
family.py: return None if weights == own_weights else  =>  return None if True else
family.py: torch.random.fork_rng(devices=[]),  =>  torch.no_grad(),
adapters.py: if torch.compiler.is_compiling():  =>  if False:
adapters.py: table: Tensor = embedding(rows)  =>  table: Tensor = embedding.weight[rows]
@ integrations/transformers/families integrations/test_patching.py
t5.py: device=device, past_seen_tokens  =>  past_seen_tokens
@ integrations/transformers integrations/test_coverage.py
coverage.py: r"self\.(self|attn|\w*[aA]ttention)  =>  r"self\.(nothing)
@ integrations/transformers integrations/test_transformers.py
adapters.py: (mask > torch.finfo(mask.dtype).min / 4)  =>  (mask > 0)
adapters.py: if not bool((row.squeeze((1, 2)) == is_valid(row.shape[-1], lengths)).all()):  =>  if False:
adapters.py: rel_query=query + position_bias[:, None]  =>  rel_query=query + content_bias[:, None]
@ integrations/transformers/families integrations/test_transformers.py
wav2vec2.py: left_max_position_embeddings, module.right_  =>  right_max_position_embeddings, module.left_
t5.py: past_seen_tokens=max_distance)  =>  past_seen_tokens=max_distance + 1)
deberta.py: distance.clamp(-span, span - 1) + reach  =>  distance.clamp(-span, span) + reach
deberta.py: (1 + len(module.pos_att_type))  =>  3
deberta.py: reach = farthest if farthest < span // 2 else span  =>  reach = farthest
mpnet.py: relative_position_bucket(distance)  =>  relative_position_bucket(-distance)
wavlm.py: (attention_mask == 1)[:, None, None]  =>  (attention_mask >= 0)[:, None, None]
wavlm.py: rel_query=gate(module, hidden_states) / module.scaling  =>  rel_query=gate(module, hidden_states)
sam.py: rows_of_pairs(width, width, module.rel_pos_w)  =>  rows_of_pairs(width, width, module.rel_pos_h)
sam.py: row.repeat_interleave(width, dim=0)  =>  row.repeat_interleave(height, dim=0)
wav2vec2.py: if getattr(module, "embed_positions", None) is not None:  # version 1  =>  if False:
@ translation/model translation/model translation/translate/test_alignment.py translation/translate/test_translator.py
transformer.py: counts.unique().numel() > 1  =>  counts.unique().numel() > 2
transformer.py: self.tgt_positions, cache.length)  =>  self.tgt_positions, 0)
attention.py: scores.masked_fill(padding, float("-inf")).softmax(-1)  =>  scores.softmax(-1)
layers.py: return x + self.dropout(sublayer(self.norm(x)))  =>  return x + sublayer(self.norm(x))
ensemble.py: return log_probs.logsumexp(0) - math.log(len(logits))  =>  return log_probs.mean(0)
mixers.py: x = x * is_valid(x.shape[1], lengths)[..., None]  =>  x = x * 1
@ translation/model translation/model/test_linear.py
linear.py: if version == _version(weight) and _is_plain  =>  if _is_plain
@ translation/model/positions translation/model
distance_terms.py: sinusoids(-distances,  =>  sinusoids(distances,
distance_terms.py: (distances > 0).long() * buckets  =>  (distances >= 0).long() * buckets
@ translation/training translation/training
loop.py: fabric.backward(loss * fabric.world_size)  =>  fabric.backward(loss)
loop.py: seed_dropout(*key, place)  =>  pass
loop.py: 0 < train.patience <= progress.waited  =>  0 < train.patience < progress.waited
objective.py: positions >= batch.tgt_lengths[:, None]  =>  positions > batch.tgt_lengths[:, None]
objective.py: model.train(training)  =>  pass
checkpoints.py: step_of(old) % every == 0  =>  step_of(old) % every >= 0
checkpoints.py: if recorded != [digest.encode(), path.name.encode()]:  =>  if len(recorded) != 2:
checkpoints.py: for path in reversed(list_checkpoints(directory)):  =>  for path in list_checkpoints(directory):
journal.py: if int(row[0]) <= step]  =>  if int(row[0]) < step]
stop.py: torch.distributed.ReduceOp.MAX  =>  torch.distributed.ReduceOp.MIN
run_directory.py: "train.threads", "train.log_every"  =>  "train.threads", "train.warmup_steps", "train.log_every"
validation.py: row[first : length - last]  =>  row[first:length]
@ translation/data translation/data
tokenizer.py: if SPACE_MARK not in text:  =>  if True:
storage.py: pa.uint16() if  =>  pa.int16() if
batching.py: epoch, index = epoch + 1, 0  =>  epoch, index = epoch + 1, index
planning.py: np.random.default_rng([seed, epoch])  =>  np.random.default_rng([seed])
mixture.py: random.permutation(size).astype(np.int32)[:rest]  =>  np.arange(size, dtype=np.int32)[:rest]
builtin.py: if split_of(kind.name, value) == self.split:  =>  if True:
text_files.py: if src_lines != tgt_lines:  =>  if src_lines < tgt_lines:
imported_tokenizer.py: tuple(sorted({*pads, bos} - {eos}))  =>  tuple(sorted({*pads, bos}))
@ translation/data translation/data/test_augmentation.py
augmentation.py: side) or side for side  =>  side) for side
augmentation.py: min(end, row + MOST_JOINED)  =>  row + MOST_JOINED
augmentation.py: self.augmentation.seed, self.epoch, row)  =>  self.augmentation.seed, row)
augmentation.py: <= augmentation.max_length  =>  < augmentation.max_length
batching.py: (epoch + 1, 0) if part.end == done else (epoch, index)  =>  (epoch, index)
batching.py: chosen, pairs = part.mixture  =>  chosen, pairs = self.stages[0].mixture
@ translation/data translation/data translation/training/test_train.py
encode.py: require(digest == expected,  =>  require(True,
@ translation/corpus translation/corpus
filters.py: if longer > config.max_ratio * shorter:  =>  if True:
filters.py: _src_lang), script_share(tgt, self._tgt_lang)  =>  _tgt_lang), script_share(tgt, self._src_lang)
overlap.py: words[self.n - 1 :]  =>  words[self.n :]
dedup.py: new[first[~known]] = True  =>  new[first] = True
fetch.py: if checksum != file.checksum:  =>  if part.stat().st_size != file.size:
pipeline.py: source.pairs(stats.read), total  =>  source.pairs(stats.kept), total
@ translation translation/commands/test_synthesis.py
synthesis.py: first_line=number + 1)  =>  first_line=1)
synthesis.py: lines = islice(self._lines(), first, None)  =>  lines = self._lines()
synthesis.py: return line, line, 0.0  =>  return line, best.text, 0.0
synthesis.py: return languages if self.tag is None else languages[::-1]  =>  return languages
synthesis.py: stats.kept >= _LEAST_KEPT * stats.read  =>  stats.kept > 0
@ translation/search translation/search translation/translate
beam.py: best / rules.penalty(state.limits)  =>  best / rules.penalty(next_length)
beam.py: tied = (maxima[:, k] == values[:, k - 1])  =>  tied = (maxima[:, k] > values[:, k - 1])
beam.py: log_probs[:, list(rules.banned)] = NEVER  =>  pass
beam.py: scores[:, rules.beam_size :] = NEVER  =>  scores[:, 2 * rules.beam_size :] = NEVER
constrained.py: allowed[rules.eos] &= not hypothesis.needed  =>  allowed[rules.eos] &= True
@ translation/translate translation/translate
pipeline.py: length = len(one.tokens) + 1  =>  length = max(1, len(one.tokens))
torch_translator.py: [options.sampling.seed, each.number, draw]  =>  [options.sampling.seed, 0, draw]
alignment.py: len(member.decoder) - 2)  =>  len(member.decoder) - 1)
tags.py: elif word is not None:  =>  else:
tags.py: _nest(offsets, stripped.opening)  =>  pass
@ translation/formats translation/formats
names.py: ours.endswith("bias") and "norm" not in ours:  =>  ours.endswith("bias"):
parity.py: if not self.mean <= self.worst <= TOLERANCE:  =>  if self.worst > TOLERANCE:
opennmt_py.py: map_location="cpu", weights_only=True  =>  map_location="cpu", weights_only=False
argos.py: "from_code": src,  =>  "from_code": tgt,
@ translation/formats/ctranslate2 translation/formats/test_read_ctranslate2.py translation/formats/test_ctranslate2.py
write.py: round(search.alpha * length / (length + 5), 3)  =>  search.alpha
read.py: torch.arange(1, _SINUSOIDS + 1)  =>  torch.arange(_SINUSOIDS)
@ translation translation/test_bundle.py
bundle.py: if metadata.get(_TOKENIZER_OF) != tokenizer.digest:  =>  if _TOKENIZER_OF not in metadata:
@ translation translation/test_hub.py
hub.py: if private and not api.model_info(name).private:  =>  if False:
@ translation translation/test_files.py translation/training/test_checkpoints.py
files.py: os.fsync(handle)  =>  pass
files.py: old.rename(path)  =>  pass
@ translation/config translation/test_config.py translation/test_presets.py
base.py: (value == high and interval[-1] == ")")  =>  False
presets.py: clip=16,  =>  clip=8,
@ translation/translate translation/commands/test_translate.py
output_formats.py: str(number - 1)  =>  str(number)
@ translation/commands translation/commands
main.py: return _report(str(stop), 128 + stop.number)  =>  return _report(str(stop), 2)
@ translation/serve translation/serve/test_queue.py translation/serve/test_app.py translation/serve/test_server.py
queue.py: self._requests.popleft()  =>  self._requests.pop()
api.py: for each in keys) > 0  =>  for each in keys) >= 0
routing.py: strip_tags(sentence, PLACEHOLDER)  =>  strip_tags(sentence)
routing.py: [(first[0], prefix)]  =>  [(first[0], "")]
app.py: if size <= most:  =>  if True:
queue.py: if batch and work > MAX_WORK:  =>  if False:
files.py: while own and total > self._size // 2:  =>  while False:
parsing.py: (resource.RLIMIT_CPU, math.ceil  =>  (resource.RLIMIT_CORE, math.ceil
api.py: self._codes.get(code.lower(), code)  =>  code
@ translation/serve/text translation/serve/test_documents.py translation/serve/test_html.py
documents.py: require(left >= 0,  =>  require(True,
documents.py: if piece.number in order and  =>  if False and
documents.py: "hyperlink", "ins",  =>  "hyperlink",
html.py: node.name in _UNTRANSLATED or node.get("translate") == "no"  =>  node.name in _UNTRANSLATED
@ translation/analysis translation/analysis
attention.py: expand(len(query), -1, -1)) * (rows >= 0)  =>  expand(len(query), -1, -1))
summaries.py: part.sum(-1)[-distance:]  =>  part.sum(-1)
summaries.py: and not (is_causal and distance > 0)  =>  and True
@ translation/experiments translation/test_experiments.py
tables.py: len(pairs) - count + 1, count)  =>  len(pairs) - count, count)
@ translation/kernels translation/kernels/test_decoder.py
decoder.c: label < -LANES ? -LANES : label  =>  label < 0 ? 0 : label
decoder.c: a->clips ? to[r * ld] : 0  =>  to[r * ld]
decoder.c: for (idx j = 0; j < before && a->clips; j++)  =>  for (idx j = 0; j < before; j++)
decoder.c: const idx count = a->src_lengths[source];  =>  const idx count = a->src_len;
decoder.c: for (idx j = count; j % LANES != 0; j++) s[j] = -INFINITY;  =>  ;
decoder.c: (width - dim) * mean * mean  =>  0
decoder.c: x = a->space;  =>  ;
decoder.c: if (!a->pre_norm) normalize(b->x  =>  if (0) normalize(b->x
decoder.c: *sum * exp2((*top - base) * LOG2_E) + sum_of(total)  =>  *sum + sum_of(total)
decoder.c: if (token >= 0 && token < count) z[token] = -INFINITY;  =>  ;
decoder.c: values[i - 1] < value; i--)  =>  values[i - 1] <= value; i--)
search.h: if (!(total > -INFINITY)) continue;  =>  ;
search.h: s->sorted[i - 1].total < sum; i--)  =>  s->sorted[i - 1].total <= sum; i--)
search.h: i < a->beam || !a->early_stopping  =>  1
search.h: best / a->penalties[a->limits[sentence]]  =>  best
search.h: s->places[place] = last;  =>  ;
search.h: stays && !taken[parents[w]]  =>  stays
decoder.py: counts.unique().numel() > 1  =>  False
packing.py: bias + nn.functional.pad(content * self.scale  =>  bias + nn.functional.pad(content * 0.0
packing.py: ((relative - content) * table)  =>  (relative * table)
@ translation translation/test_demo.py
demo.py: resume=(run / "recipe.yaml").exists(),  =>  resume=False,
"""

ROOT = Path(__file__).resolve().parents[1]
SOURCES = Path("src/relattn")
WITH_BFLOAT16 = ("rows.h", "products.h")  # files whose mutations are compiled for bfloat16 too
LOADED = """
import relattn
from relattn.backends.native import library
from relattn.translation.kernels import decoder
print(relattn.__file__)
for real, kernels in library.KERNELS.items():
    print(library.object_of(kernels.level, library.name_of(real), library.HERE).name)
print(f"decoder-{decoder.KERNELS.level}-float32.so")
"""  # prints the path that relattn is imported from, and the names of the object files that this machine loads
RUNNING: set[subprocess.Popen[bytes]] = set()
LARGEST_FILE = 10**9  # bytes that tests may write to one file, since a mutation may never stop writing


@dataclass(frozen=True)
class Mutation:
    """One error: `new` in place of `old` in a file, and the tests that should catch it."""

    path: Path  # below src/relattn
    old: str
    new: str
    tests: tuple[str, ...]  # below tests/

    def __str__(self) -> str:
        return f"{self.path}: {self.old}  =>  {self.new}"

    def apply(self, text: str) -> str:
        """Return the text of the file with the error. Raise ValueError if the old text is not there exactly once."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self}: the old text must occur once in the file, got {count} times")
        mutated = text.replace(self.old, self.new)
        if self.path.suffix == ".py":
            compile(mutated, self.path, "exec")
        return mutated


def read_mutations(text: str) -> Iterator[Mutation]:
    """Yield the mutations of a text like MUTATIONS."""
    directory, tests = "", [""]
    for line in filter(None, text.splitlines()):
        if line.startswith("@ "):
            directory, *tests = line.split()[1:]
            continue
        file, _, change = line.partition(": ")
        old, _, new = change.partition("  =>  ")
        yield Mutation(Path(directory, file), old, new, tuple(tests))


class Copy:
    """A temporary copy of a tree: the files that git tracks or does not ignore, and the compiled kernels.

    Args:
        tree: Root of the tree.
        directory: Directory for the copy and for temporary files of its tests.
    """

    def __init__(self, tree: Path, directory: Path) -> None:
        self.root, self.temporary, self.output = directory / "tree", directory / "tmp", directory / "output.txt"
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        listed = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout
        objects = [str(path.relative_to(tree)) for path in (tree / SOURCES).rglob("*.so")]
        for name in [*listed.split("\0")[:-1], *objects]:
            if (tree / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree / name, self.root / name)
        code, printed = self.run([sys.executable, "-c", LOADED], 120)
        file, *self.objects = printed.split()
        if code != 0 or not Path(file).is_relative_to(self.root):
            raise SystemExit(f"relattn must be imported from the copy {self.root}, got: {printed}")

    def run(self, command: Sequence[str], seconds: float) -> tuple[int | None, str]:
        """Run a command in the copy, and return its exit code, None if it took too long, and its output."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "TMPDIR": str(self.temporary)}
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        RUNNING.add(process)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            kill(process)
            RUNNING.discard(process)
            shutil.rmtree(self.temporary, ignore_errors=True)
        return code, self.output.read_text(errors="replace")

    def test(self, tests: Iterable[str], arguments: Sequence[str], seconds: float) -> str:
        """Run tests and return what caught an error: a test, a crash or a timeout; "" if they passed."""
        paths = [f"tests/{path}" for path in tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider", *arguments, *paths]
        command.append(f"--basetemp={self.temporary / 'pytest'}")  # which `run` deletes
        code, printed = self.run(command, seconds)
        if code in (0, 5):  # 5: no test of these files is in the tier
            return ""
        if code is None:
            return f"timeout after {seconds:.0f} s"
        if code == 4:  # wrong arguments
            raise SystemExit(f"{shlex.join(command)}\n{printed[-3000:]}")
        failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", printed, re.MULTILINE)
        return failed[1].partition("[")[0] if failed else f"exit code {code}"

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Apply a mutation to the copy, and undo it at the end."""
        path = self.root / SOURCES / mutation.path
        compiled = self.objects if path.suffix in (".c", ".h") else []
        if path.name not in WITH_BFLOAT16:
            compiled = [name for name in compiled if "bfloat16" not in name]
        commands = BUILD["all_commands"](self.root, BUILD["at_hand"]()) if compiled else {}
        commands = {file: command for file, command in commands.items() if file.name in compiled}
        before = {file: file.read_bytes() for file in (path, *commands)}
        times = path.stat()
        try:
            path.write_text(mutation.apply(before[path].decode()))
            os.utime(path, (time.time(), hash(mutation) % 2**31))  # so that no bytecode of another mutation is used
            for file, command in commands.items():
                subprocess.run(command, cwd=file.parent, check=True)
            yield
        finally:
            for file, content in before.items():
                file.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with all processes of its session that are left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


BUILD: dict[str, Any] = {}  # names of hatch_build.py, which has the commands that compile the kernels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="apply only mutations that contain this text")
    parser.add_argument("--list", action="store_true", help="check the texts of the mutations and list them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="copies that run tests at the same time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a mutation may add to its tests")
    parser.add_argument("--tree", type=Path, default=ROOT, help="apply the mutations to another checkout and its tests")
    parser.add_argument(
        "--pytest-args", type=shlex.split, default=[], help="arguments for pytest, such as --pytest-args=-v"
    )
    options = parser.parse_args()
    tree = options.tree.resolve()

    mutations = read_mutations(MUTATIONS)
    chosen = [each for each in mutations if not options.only or any(text in str(each) for text in options.only)]
    errors = []
    for mutation in chosen:
        try:
            mutation.apply((tree / SOURCES / mutation.path).read_text())
        except (OSError, SyntaxError, ValueError) as error:
            errors.append(str(error))
    paths = sorted({path for mutation in chosen for path in mutation.tests})
    errors += [f"{tree}/tests/{path}: no such tests" for path in paths if not (tree / "tests" / path).exists()]
    if errors:
        print("\n".join(errors))
        return 2
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0

    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))  # which all processes started here inherit
    for number in (signal.SIGINT, signal.SIGTERM):  # so that the tests end with this process
        signal.signal(number, signal.default_int_handler)
    BUILD.update(runpy.run_path(str(tree / "hatch_build.py")))
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(tree, Path(directory) / str(number)))

        took: dict[str, float] = {}  # seconds of the tests without a mutation

        def test(tests: Sequence[str], mutation: Mutation | None = None) -> tuple[str, float]:
            """Return what caught a mutation, "" if nothing did, and the seconds that the tests took."""
            copy, limit = copies.get(), options.timeout + sum(took.get(path, 0.0) for path in tests)
            try:
                with nullcontext() if mutation is None else copy.mutated(mutation):
                    start = time.perf_counter()
                    return copy.test(tests, options.pytest_args, limit), time.perf_counter() - start
            finally:
                copies.put(copy)

        threads = ThreadPoolExecutor(options.jobs)
        try:
            for path, (failed, seconds) in zip(paths, threads.map(lambda path: test([path]), paths), strict=True):
                print(f"without a mutation: {path} {failed or 'passes'} ({seconds:.0f} s)", flush=True)
                if failed:
                    return 2
                took[path] = seconds
            running = {threads.submit(test, mutation.tests, mutation): mutation for mutation in chosen}
            for future in as_completed(running):
                caught, seconds = future.result()
                survived += [] if caught else [running[future]]
                print(f"{caught or 'SURVIVED':60} {seconds:4.0f} s  {running[future]}", flush=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            while copies.qsize() < options.jobs:
                for process in list(RUNNING):
                    kill(process)
                time.sleep(0.1)
    if survived:
        print("\nnot caught:", *map(str, survived), sep="\n")
    print(f"\n{len(chosen) - len(survived)} of {len(chosen)} mutations caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
