"""Models for the engine in WebAssembly: the structures of `relattn_mt.h` as `kernels/engine/web.c` reads them.

Pointers and sizes have 32 bits. Pointers are offsets in the file, and a list at its end says where they are. Weights
are packed by the level `default`, which has the same panels as WebAssembly: the scores of both are equal to the bit.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from relattn_mt.bundle import Bundle
from relattn_mt.engine import library
from relattn_mt.engine.decoder import NativeDecoder, unsupported_reason
from relattn_mt.engine.packing import LINE
from relattn_mt.search.types import SearchRules
from relattn_mt.support.errors import require

LONGEST = 512  # tokens of a sentence
PANEL = 16  # outputs per panel in WebAssembly


def model_file(bundle: Bundle) -> bytes:
    """Return the file of a model.

    Raises:
        InputError: The engine does not run this model.
    """
    reason = unsupported_reason(bundle.model)
    require(reason is None, f"WebAssembly runs what the compiled engine runs: {reason}")
    kernels = library.load("default")._replace(int8_kernels=[library.GENERIC, library.PAIRS])
    require(kernels.panel == PANEL, f"packing requires panels of {PANEL} outputs, got {kernels.panel} on this machine")
    special = bundle.tokenizer.special
    model = NativeDecoder(
        bundle.model, bundle.tokenizer.vocab_sizes, bundle.state, int8=bundle.is_quantized, kernels=kernels
    )
    capacity = min(LONGEST, model.spec.max_length or LONGEST)
    rules = SearchRules(config=bundle.search, bos=special.bos, eos=special.eos, banned=special.banned)
    require(not bundle.search.restrains, "WebAssembly requires a search without no_repeat_ngram and repetition_penalty")
    encoder_arguments, encoder_arrays = model.positions("encoder", capacity)
    step, decoder_arrays = model.positions("decoder", capacity)
    step["attention_layer"], step["attention_heads"] = bundle.model.alignment
    encoder = model.types["step"](**encoder_arguments)
    memory = model.types["memory"](**model.memory_arguments)
    search, search_arrays = model.search_arguments(rules, capacity, step)
    arrays = [*encoder_arrays, *decoder_arrays, *model.pack.kept, *search_arrays]
    return _file(capacity, [encoder, memory, search], arrays)


def _file(capacity: int, structures: Sequence[Any], arrays: Sequence[Any]) -> bytes:
    """Return a file: a head with structures, the arrays that they point to, and the places of pointers.

    Args:
        capacity: Tokens of a sentence.
        structures: Structures of the head.
        arrays: Arrays of NumPy, and arrays of layers.
    """
    head = [*np.frombuffer(b"relattnw", np.int32).tolist(), library.INTERFACE, PANEL, capacity, 0, 0]
    words = {0: [(False, number) for number in head]}  # of structures, by their addresses
    for structure in structures:
        words[0] += _words(structure)
    numbers = {}
    for array in arrays:
        if isinstance(array, np.ndarray):
            numbers[array.ctypes.data] = array
        else:
            words[ctypes.addressof(array)] = [word for layer in array for word in _words(layer)]
    sizes = {start: 4 * len(part) for start, part in words.items()}
    sizes |= {start: array.nbytes for start, array in numbers.items()}
    offsets = {}  # in the file, by address
    end = 0
    for start, size in sizes.items():
        offsets[start] = end
        end += -(-size // LINE) * LINE
    starts = sorted(offsets)
    places = []
    content = bytearray(end)
    for start, part in words.items():
        for number, (is_pointer, word) in enumerate(part):
            if is_pointer:
                array_start = starts[bisect_right(starts, word) - 1]
                places.append(offsets[start] + 4 * number)
                part[number] = True, offsets[array_start] + word - array_start
    words[0][5:7] = (False, len(places)), (False, end)
    for start, part in words.items():
        numbers[start] = np.array([word for _, word in part]).astype(np.uint32)
    for start, array in numbers.items():
        content[offsets[start] : offsets[start] + array.nbytes] = array.tobytes()
    return bytes(content) + np.array(places, np.uint32).tobytes()


def _words(structure: Any) -> Iterator[tuple[bool, int]]:
    """Yield the numbers of 32 bits of a structure in WebAssembly, and whether each is a pointer to something."""
    for name, kind, *_ in structure._fields_:
        value = getattr(structure, name)
        if issubclass(kind, ctypes.Structure):
            yield from _words(value)
        elif kind is ctypes.c_float:
            yield False, int(np.float32(value).view(np.int32))
        else:
            yield kind is ctypes.c_void_p and value is not None, value or 0
