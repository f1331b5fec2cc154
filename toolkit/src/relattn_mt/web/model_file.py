"""Models for the engine in WebAssembly: the structures of `relattn_mt.h` as `kernels/engine/web.c` reads them.

Pointers and sizes have 32 bits. Pointers are offsets in the file, and a list at its end says where they are. Weights
are packed by the level `default`, which has the same panels as WebAssembly: the scores of both are equal to the bit.
"""

import ctypes
from bisect import bisect_right
from typing import Any

import numpy as np

from relattn_mt.bundle import Bundle
from relattn_mt.engine import library
from relattn_mt.engine.decoder import NativeDecoder, integers, unsupported_reason
from relattn_mt.engine.packing import LINE, address
from relattn_mt.search.types import SearchRules
from relattn_mt.support.errors import require

LONGEST = 512  # tokens of a sentence
PANEL = 16  # outputs per panel in WebAssembly
NARROW = {ctypes.c_void_p: ctypes.c_uint32, ctypes.c_ssize_t: ctypes.c_int32}  # types of WebAssembly


def model_file(bundle: Bundle) -> bytes:
    """Return the file of a model.

    Raises:
        InputError: The engine does not run this model.
    """
    reason = unsupported_reason(bundle.model)
    require(reason is None, f"WebAssembly runs what the compiled decoder runs: {reason}")
    kernels = library.load("default")._replace(int8_kernels=[library.GENERIC, library.PAIRS])
    require(kernels.panel == PANEL, f"packing requires panels of {PANEL} outputs, got {kernels.panel} on this machine")
    special = bundle.tokenizer.special
    model = NativeDecoder(
        bundle.model, bundle.tokenizer.vocab_sizes, bundle.state, int8=bundle.is_quantized, kernels=kernels
    )
    capacity = min(LONGEST, model.spec.max_length or LONGEST)
    rules = SearchRules(config=bundle.search, bos=special.bos, eos=special.eos, banned=special.banned)
    require(not rules.restrains, "WebAssembly requires a search without no_repeat_ngram and repetition_penalty")
    penalties = np.array([rules.penalty(length) for length in range(capacity + 2)], np.float32)
    banned = integers(special.banned)
    encoder_positions, encoder_arrays = model.positions("encoder", capacity)
    decoder_positions, decoder_arrays = model.positions("decoder", capacity)
    layer, heads = bundle.model.alignment
    arrays = [*encoder_arrays, *decoder_arrays, *model.pack.kept, penalties, banned]
    encoder = model.types["step"](**model.encoder_arguments | encoder_positions)
    memory = model.types["memory"](
        keys_values=model.memory_map,
        x_row=bundle.model.dim,
        layer_count=bundle.model.decoder_layers,
        heads=model.pack.heads,
        head_dim=model.pack.padded,
    )
    step = model.types["step"](
        **model.arguments | decoder_positions,
        banned=address(banned, np.int64),
        banned_count=len(banned),
        attention_layer=layer,
        attention_heads=heads,
    )
    search = model.types["search"](
        step=step,
        penalties=address(penalties),
        beam=rules.beam_size,
        best=1,
        early_stopping=(False, True, "heuristic").index(bundle.search.early_stopping),
        bos=rules.bos,
        eos=rules.eos,
    )
    return _File(capacity, {"encoder": encoder, "memory": memory, "search": search}, arrays).content


class _File:
    """A file: a head with structures, the arrays that they point to, and the places of pointers.

    Args:
        capacity: Tokens of a sentence.
        parts: Structures of the head by name.
        arrays: Arrays of NumPy, and arrays of layers.

    Attributes:
        content: The bytes.
    """

    def __init__(self, capacity: int, parts: dict[str, Any], arrays: list[Any]) -> None:
        self.narrow: dict[type, type] = {}
        self.places: list[int] = []
        numbers = [(name, ctypes.c_int32) for name in ("interface", "panel", "capacity", "pointer_count", "pointers")]
        structures = [(name, self.narrowed(type(part))) for name, part in parts.items()]
        fields = [("magic", ctypes.c_char * 8), *numbers, *structures]
        head = type("Model", (ctypes.Structure,), {"_fields_": fields})(
            magic=b"relattnw", interface=library.INTERFACE, panel=PANEL, capacity=capacity
        )
        self.starts: dict[int, int] = {}  # offset in the file of the array at each address
        end = _aligned(ctypes.sizeof(head))
        layers: list[tuple[int, Any]] = []
        file: list[tuple[int, bytes]] = []
        for array in arrays:
            is_numbers = isinstance(array, np.ndarray)
            start = array.ctypes.data if is_numbers else ctypes.addressof(array)
            if start in self.starts:
                continue
            self.starts[start] = end
            if is_numbers:
                file.append((end, array.tobytes()))
                end += _aligned(array.nbytes)
            else:
                layers.append((end, array))
                end += _aligned(len(array) * ctypes.sizeof(self.narrowed(array._type_)))
        self.addresses = sorted(self.starts)
        for name, part in parts.items():
            self.copy(getattr(head, name), part, getattr(type(head), name).offset)
        for start, array in layers:
            copies = (self.narrowed(array._type_) * len(array))()
            for number, layer in enumerate(array):
                self.copy(copies[number], layer, start + number * ctypes.sizeof(copies[number]))
            file.append((start, bytes(copies)))
        head.pointer_count = len(self.places)
        head.pointers = end
        content = bytearray(end)
        for start, part in [(0, bytes(head)), *file]:
            content[start : start + len(part)] = part
        self.content = bytes(content) + np.array(self.places, np.uint32).tobytes()

    def narrowed(self, structure: Any) -> Any:
        """Return a structure with pointers and sizes of 32 bits."""
        if structure not in self.narrow:
            fields = []
            for name, kind, *_ in structure._fields_:
                is_structure = issubclass(kind, ctypes.Structure)
                fields.append((name, self.narrowed(kind) if is_structure else NARROW.get(kind, kind)))
            self.narrow[structure] = type(structure.__name__, (ctypes.Structure,), {"_fields_": fields})
        return self.narrow[structure]

    def copy(self, to: Any, structure: Any, offset: int) -> None:
        """Copy a structure to a narrow one, which has an offset in the file."""
        for name, kind, *_ in structure._fields_:
            value = getattr(structure, name)
            place = offset + getattr(type(to), name).offset
            if issubclass(kind, ctypes.Structure):
                self.copy(getattr(to, name), value, place)
            elif kind is not ctypes.c_void_p:
                setattr(to, name, value)
            elif value:
                start = self.addresses[bisect_right(self.addresses, value) - 1]
                setattr(to, name, self.starts[start] + value - start)
                self.places.append(place)


def _aligned(size: int) -> int:
    return -(-size // LINE) * LINE
