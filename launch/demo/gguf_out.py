"""Writes a GGUF file (version 3), just as much of the format as the demo model needs.

Layout: magic, version, counts; key-value pairs; tensor infos; then the tensors' data, each at a
multiple of 32 bytes from the start of the data. A tensor's dimensions are listed innermost first.
"""

import struct

import numpy as np

ALIGNMENT = 32
F32, Q8_0 = 0, 8
BLOCK = 32                                          # values in a Q8_0 block

_SCALARS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
_STRING, _ARRAY = 8, 9


def quantize_q8_0(x):
    """Rows of f32 as Q8_0 blocks: the bytes, and the f32 values that they stand for.

    A block is an f16 scale d and 32 signed bytes q; its values are d * q."""
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, BLOCK)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d > 0)
    q = np.round(blocks * inverse).astype(np.int8)
    d16 = d.astype(np.float16)
    packed = np.concatenate([d16.view(np.uint8), q.view(np.uint8)], axis=1)
    return packed.tobytes(), (d16.astype(np.float32) * q).reshape(x.shape)


def _string(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind, value):
    if kind == "str":
        return struct.pack("<I", _STRING) + _string(value)
    if kind.startswith("["):                        # "[f32]": an array
        inner = kind[1:-1]
        if inner == "str":
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
        code, layout = _SCALARS[inner]
        items = b"".join(struct.pack(layout, v) for v in value)
        return struct.pack("<IIQ", _ARRAY, code, len(value)) + items
    code, layout = _SCALARS[kind]
    return struct.pack("<I", code) + struct.pack(layout, value)


def write(path, pairs, tensors):
    """pairs: (key, kind, value); tensors: (name, type, shape outermost first, bytes)."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs))
    for key, kind, value in pairs:
        head += _string(key) + _value(kind, value)
    offset = 0
    for name, kind, shape, raw in tensors:
        head += _string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, offset)
        offset += len(raw) + -len(raw) % ALIGNMENT
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT))
        for _, _, _, raw in tensors:
            f.write(raw)
            f.write(bytes(-len(raw) % ALIGNMENT))
