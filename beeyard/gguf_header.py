"""
The header of a GGUF file: what model it is, from its first bytes alone. Pure but for the reader it is given.

Source: the GGUF specification, version 3, and the names of keys that llama.cpp writes.
"""

import hashlib
import struct
from collections.abc import Callable
from typing import Any

from beeyard.catalog import CatalogError, Drafter, Gguf

# (offset, length) -> bytes; shorter only at the file's end.
Read = Callable[[int, int], bytes]
MAGIC = b"GGUF"
CHUNK = 4 * 2**20  # bytes a read: a vocabulary of 262,144 words has some 5 MB
LONGEST = 256 * 2**20  # bytes; no header is that long, and a broken one must not fetch a whole model
STRING, ARRAY = 8, 9
# struct's letter of each of GGUF's scalar types.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
WORDS = "tokenizer.ggml.tokens"
# Under a key that no file has: the names of its tensors.
TENSORS = ""
# What upstream's loader looks for (src/models/dflash.cpp, since pull requests 27816 and before): DFlash 2's selector
# of candidates, DSpark's Markov head.
DRAFTERS: dict[bytes, Drafter] = {b"selector_hidden.weight": "dflash-2", b"markov_w1.weight": "dspark"}


class _Cursor:
    """Reads on through a file, a chunk at a time."""

    def __init__(self, read: Read) -> None:
        self._read, self._buffer, self._start, self.at = read, b"", 0, 0

    def take(self, count: int) -> bytes:
        while self._start + len(self._buffer) < self.at + count:
            end = self._start + len(self._buffer)
            more = self._read(end, CHUNK)
            if not more or end > LONGEST:
                raise ValueError("it ends within its header")
            self._buffer = self._buffer[self.at - self._start :] + more
            self._start = self.at
        first = self.at - self._start
        self.at += count
        return self._buffer[first : first + count]

    def number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))[0]

    def string(self) -> bytes:
        return self.take(self.number("Q"))

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string().decode(errors="replace")
        if kind != ARRAY:
            return self.number(SCALARS[kind])
        of, count = self.number("I"), self.number("Q")
        if of == STRING:
            return [self.string() for _ in range(count)]
        letter = SCALARS[of]
        return list(struct.unpack(f"<{count}{letter}", self.take(count * struct.calcsize(f"<{letter}"))))


def read_header(read: Read, name: str) -> Gguf:
    """
    What a GGUF file's header says of its model.

    :param read: gives bytes of the file, by offset and length
    :param name: the file's, for messages
    :raises CatalogError: it is no GGUF file, or ends too early.
    """
    try:
        return _facts(_values(_Cursor(read)))
    except (ValueError, KeyError, struct.error) as error:
        raise CatalogError(f"{name} has no GGUF header ({error}). Fix: name another file") from error


def _values(cursor: _Cursor) -> dict[str, Any]:
    magic = cursor.take(4)
    if magic != MAGIC:
        raise ValueError(f"it starts with {magic!r}")
    version, tensors, count = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in (2, 3):
        raise ValueError(f"version {version} is none that we know")
    found: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string().decode()
        found[key] = cursor.value(cursor.number("I"))
    if found.get("general.architecture") == "dflash":  # whose kinds are told by their tensors alone
        found[TENSORS] = {_tensor_name(cursor) for _ in range(tensors)}
    return found


def _tensor_name(cursor: _Cursor) -> bytes:
    name, dimensions = cursor.string(), cursor.number("I")
    cursor.take(8 * dimensions + 4 + 8)  # its shape, type and offset
    return name


def _drafter(values: dict[str, Any]) -> Drafter | None:
    """Which of those drafters it is whose architecture has the same name: as llama.cpp's loader tells them apart."""
    if values.get("dflash.target_layer_ids") is not None:
        return "early"
    return next((kind for tensor, kind in DRAFTERS.items() if tensor in values.get(TENSORS, ())), None)


def _facts(values: dict[str, Any]) -> Gguf:
    architecture = values["general.architecture"]

    def of(key: str) -> Any:
        return values.get(f"{architecture}.{key}")

    heads = of("attention.head_count")
    words = values.get(WORDS)
    return Gguf(
        architecture=architecture,
        layers=of("block_count"),
        heads=_short(heads),
        kv_heads=_short(of("attention.head_count_kv") or heads),
        key_length=of("attention.key_length"),
        value_length=of("attention.value_length"),
        embedding=of("embedding_length"),
        context=of("context_length"),
        window=of("attention.sliding_window") or None,
        full_layers=_full_layers(of("attention.sliding_window_pattern")),
        key_length_swa=of("attention.key_length_swa"),
        value_length_swa=of("attention.value_length_swa"),
        shared_kv_layers=of("attention.shared_kv_layers") or None,
        nextn_layers=of("nextn_predict_layers") or None,
        feed_forward=_short(of("feed_forward_length")),
        attention_every=of("full_attention_interval"),
        ssm_convolution=of("ssm.conv_kernel"),
        ssm_inner=of("ssm.inner_size"),
        ssm_state=of("ssm.state_size"),
        ssm_groups=of("ssm.group_count"),
        block=of("block_size"),
        words=len(words) if words is not None else None,
        vocabulary=_digest(words) if words is not None else None,
        drafter=_drafter(values) if architecture == "dflash" else None,
    )


def _short(value: Any) -> Any:
    """One number where all layers have the same."""
    return value[0] if isinstance(value, list) and len(set(value)) == 1 else value


def _full_layers(pattern: Any) -> list[int] | None:
    """Of a pattern that says of each layer whether it has the window; a mere number means different things."""
    if not isinstance(pattern, list):
        return None
    return [layer for layer, is_windowed in enumerate(pattern) if not is_windowed]


def _digest(words: list[bytes]) -> str:
    whole = hashlib.sha256()
    for word in words:
        whole.update(struct.pack("<I", len(word)) + word)
    return whole.hexdigest()[:16]
