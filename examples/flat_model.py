"""Write a bundle as a flat file for `translate.c`: python flat_model.py BUNDLE FILE

The file has the structures of `relattn_mt.h` and the arrays that they point to, packed for the level of this processor
or of RELATTN_LEVEL. Pointers are offsets in the file, and a list says where they are.
"""

import ctypes
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
from relattn_mt.bundle import read_bundle
from relattn_mt.engine import decoder as engine
from relattn_mt.engine.packing import aligned
from relattn_mt.search.types import SearchRules
from relattn_mt.translate.prepare import search_limit

LONGEST = 512  # tokens of a sentence


def main(bundle_path: str, path: str) -> None:
    bundle, kernels = read_bundle(bundle_path), engine.KERNELS
    if kernels is None:
        raise SystemExit(engine.MISSING)
    types, special = kernels.types, bundle.tokenizer.special
    model = engine.NativeDecoder(bundle.model, bundle.tokenizer.vocab_sizes, bundle.state, int8=bundle.is_quantized)
    capacity = min(LONGEST, model.spec.max_length or LONGEST)
    rules = SearchRules(config=bundle.search, bos=special.bos, eos=special.eos, banned=special.banned)
    limits = np.array([min(search_limit(size, bundle.search), capacity) for size in range(capacity + 1)], np.int64)
    given = np.array(special.tgt_begin, np.int64)
    encoder, encoder_blocks = model.positions("encoder", capacity)
    decoder, decoder_blocks = model.positions("decoder", capacity)
    search, search_blocks = model.search_arguments(rules, capacity, decoder)
    search.given, search.given_count = given.ctypes.data, len(given)
    blocks: list[Any] = [*encoder_blocks, *decoder_blocks, *model.pack.kept, limits, *search_blocks, given]

    class Model(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_char * size) for name, size in (("magic", 8), ("level", 24))),
            *((name, ctypes.c_int64) for name in ("panel", "capacity", "pointer_count", "pointers")),
            *(("limits", ctypes.c_void_p), ("encoder", types["step"])),
            *((name, types[name]) for name in ("memory", "search")),
        )

    content = Model(
        b"relattn1", kernels.level.encode(), kernels.panel, capacity,
        limits=limits.ctypes.data, encoder=types["step"](**encoder),
        memory=types["memory"](**model.memory_arguments), search=search,
    )  # fmt: skip
    Path(path).write_bytes(flat(content, blocks))


def flat(content: Any, blocks: list[Any]) -> bytes:
    """Return a structure and the arrays and structures that it points to, with offsets for pointers."""
    starts: dict[int, tuple[int, Any]] = {}
    end = ctypes.sizeof(content) + -ctypes.sizeof(content) % 64
    for block in blocks:
        address = block.ctypes.data if isinstance(block, np.ndarray) else ctypes.addressof(block)
        starts.setdefault(address, (end, block))
        end += memoryview(block).nbytes + -memoryview(block).nbytes % 64
    addresses, places = sorted(starts), list[int]()

    def relocate(value: Any, at: int) -> None:
        """Replace the pointers in a structure or an array of them, which is `at` this offset of the file."""
        if isinstance(value, ctypes.Array) and not isinstance(value, ctypes.c_char * len(value)):
            for i, each in enumerate(value):
                relocate(each, at + i * ctypes.sizeof(each))
        elif isinstance(value, ctypes.Structure):
            for name, kind, *_ in value._fields_:
                place, own = at + getattr(type(value), name).offset, getattr(value, name)
                if kind is ctypes.c_void_p and own:
                    address = addresses[bisect_right(addresses, own) - 1]
                    setattr(value, name, starts[address][0] + own - address)
                    places.append(place)
                else:
                    relocate(own, place)

    relocate(content, 0)
    for start, block in starts.values():
        relocate(block, start)
    content.pointer_count, content.pointers = len(places), end
    file = aligned(end, dtype=np.uint8)
    file[: ctypes.sizeof(content)] = np.frombuffer(content, np.uint8)
    for start, block in starts.values():
        size = memoryview(block).nbytes
        file[start : start + size] = np.frombuffer(block, np.uint8)
    return file.tobytes() + np.array(places, np.int64).tobytes()


if __name__ == "__main__":
    main(*sys.argv[1:])
