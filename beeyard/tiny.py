"""Writes the tiny GGUF models that stand in for real weights where there is no GPU and no download.

A real llama-server loads them, serves them and drafts with them; each knows one canned answer. Their bytes
are the same on every machine, since presets/lock.yaml pins their sha256: weights come from whole numbers and
IEEE ``+ - * / sqrt`` in a fixed order, never from libm, BLAS or a ``Generator``; no date, no version goes in.
A change that alters a byte belongs together with new digests in the lock.

How a target answers: its residual stream has a dimension for each word of the answer. The head reads the
dimension of the last token and names the word after it; any token of the prompt leads to the first word, the
last word to the end of the turn. Attention and feed-forward run on noise and add only a little of it.

How a drafter knows the answer: DFlash fills a block of mask tokens at once. Head d of its only layer looks
back exactly d tokens and names the word d places on, so all heads of one place agree. Every `HARD`-th word it
knows wrong on purpose: the target accepts some of its drafts and refuses the others.

Usage: ``python -m beeyard.tiny FOLDER``
"""

import sys
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray

Array = NDArray[np.float32]
Tensors = dict[str, Array]

WIDTH = 128
"""Dimensions of the residual stream: two and one for each word."""
PROMPT, CONSTANT, FIRST_WORD = 0, 1, 2
"""Dimensions: "belongs to the prompt", "is a token" (the same for all), "is the first word of the answer"."""
SIGNAL = sqrt(WIDTH)
"""A word's value in its dimension, where RMS normalisation leaves it."""
CONTEXT = 65536
"""Tokens; what a model claims. Servers ask for less."""
FEED_FORWARD = 128
"""Dimensions inside a feed-forward."""

BLOCK = 8
"""Tokens a drafter fills at once, the last known one among them."""
HARD = 6
"""A drafter knows every so many-th word wrong."""
MISTAKE = 7
"""Places between a hard word and the one drafted instead."""
PROBE_DIM = 64
"""Dimensions of a drafter's head; a multiple of 32, which quantised KV needs."""
PROBE_SHARPNESS = 6.0
"""Weight of the drafter's normalised queries and keys: a softmax that picks one distance."""
PROBE_ROPE_BASE = 16.0
"""RoPE turns pair i of a drafter's 32 by 16^(-i/32), that is 2^(-i/8), radians a token: roots, no powers."""


@dataclass(frozen=True)
class Vocabulary:
    """
    Bytes, markers and the words of the one answer.

    A byte-level BPE without the merges that would make such a word of a prompt: words are only ever answered.
    """

    answer: str
    turn_start: str
    turn_end: str

    @cached_property
    def words(self) -> list[str]:
        """The answer's words, all different, each with the space before it."""
        first, *others = self.answer.split()
        return [first, *(f" {word}" for word in others)]

    @cached_property
    def markers(self) -> list[str]:
        """The control tokens."""
        return ["<|endoftext|>", self.turn_start, self.turn_end, "<|mask|>"]

    @cached_property
    def tokens(self) -> list[str]:
        """All tokens in the order of their ids, written as GGUF has them."""
        spoken = [_printable(text) for text in (*MERGED, *self.words)]
        known = [*_byte_characters(), *self.markers, *spoken]
        return [*known, *(f"<|unused{number}|>" for number in range(-len(known) % 32))]

    @cached_property
    def types(self) -> list[TokenType]:
        """The type of each token."""
        kinds = dict.fromkeys(self.markers, TokenType.CONTROL)
        return [
            kinds.get(token, TokenType.UNUSED if token.startswith("<|unused") else TokenType.NORMAL)
            for token in self.tokens
        ]

    @cached_property
    def word_ids(self) -> list[int]:
        """The ids of the answer's words, in the answer's order."""
        return [self.id_of(_printable(word)) for word in self.words]

    @property
    def template(self) -> str:
        """The chat template."""
        return (
            f"{{%- for m in messages %}}{self.turn_start}{{{{ m['role'] }}}}\n"
            f"{{{{ m['content'] }}}}{self.turn_end}\n{{% endfor %}}"
            f"{{%- if add_generation_prompt %}}{self.turn_start}assistant\n{{% endif %}}"
        )

    def id_of(self, token: str) -> int:
        """The id of a token, written as GGUF has it."""
        return self.tokens.index(token)


MERGED = (" t", "he")
"""The BPE has to have merges; these are all."""

GEMMA = Vocabulary(
    answer=(
        "Bees leave their hive at dawn, visit clover and thyme until noon, carry pollen home in small "
        "baskets, dance for sisters who want directions, fan fresh nectar with warm wings, seal honey under "
        "white wax, guard every door against wasps, then sleep while stars turn above our quiet garden."
    ),
    turn_start="<start_of_turn>",
    turn_end="<end_of_turn>",
)
QWEN = Vocabulary(
    answer=(
        "This server reads a tiny model, writes one word after another, checks what its drafter proposed, "
        "keeps some guesses, drops the rest, then stops: no weights were trained, yet every part of your "
        "path from request to reply has done honest work."
    ),
    turn_start="<|im_start|>",
    turn_end="<|im_end|>",
)


def write_all(folder: Path) -> list[Path]:
    """Write every tiny model into ``folder``, which is made if need be; the files' paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _write_gemma4(folder / "tiny-gemma4.gguf", GEMMA, _head_of_the_answer(GEMMA)),
        _write_dflash(folder / "tiny-gemma4-dflash.gguf", GEMMA, reads_layers=(1, 3, 5)),
        _write_qwen3(folder / "tiny-qwen3.gguf", QWEN, _head_of_the_answer(QWEN)),
        _write_dflash(folder / "tiny-qwen3-dflash.gguf", QWEN, reads_layers=(1, 3)),
        # As a broken engine answers: "//////". With tiny-gemma4's vocabulary, so the same drafter fits it.
        _write_gemma4(folder / "tiny-stuck.gguf", GEMMA, _head_of_one_token(GEMMA, "/")),
    ]


# Numbers that are the same everywhere


class Noise:
    """Uniform noise within 1/16 of zero; every value is a whole number times a power of two, so exact."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def tensor(self, rows: int, columns: int) -> Array:
        """The next ``rows`` x ``columns`` values."""
        whole = (self._bits.random_raw(rows * columns) >> np.uint64(40)).astype(np.int64)
        return ((2 * whole + 1 - 2**24) / 2**28).astype(np.float32).reshape(rows, columns)


def _cosine_and_sine(angle: float) -> tuple[float, float]:
    """
    Of an angle in radians, 8 at most, by Taylor's series.

    Not by libm, which differs between machines, nor by `sum`, which rounds otherwise since Python 3.12.
    """
    term, parts = 1.0, [0.0, 0.0, 0.0, 0.0]
    for power in range(64):
        parts[power % 4] += term
        term = term * angle / (power + 1)
    return parts[0] - parts[2], parts[1] - parts[3]


def _zeros(*shape: int) -> Array:
    return np.zeros(shape, np.float32)


def _ones(size: int) -> Array:
    return np.ones(size, np.float32)


# What a model says


def _embeddings(vocabulary: Vocabulary) -> Array:
    """A word is its own dimension, any other token "prompt", a mask neither; all share the constant."""
    table = _zeros(len(vocabulary.tokens), WIDTH)
    table[:, CONSTANT] = 1.0
    table[:, PROMPT] = SIGNAL
    table[vocabulary.id_of("<|mask|>"), PROMPT] = 0.0
    for place, word in enumerate(vocabulary.word_ids):
        table[word, PROMPT] = 0.0
        table[word, FIRST_WORD + place] = SIGNAL
    return table


def _head_of_the_answer(vocabulary: Vocabulary) -> Array:
    """After each word the next, by a logit of about 20; then the end, or the first word if that is barred."""
    head = _zeros(len(vocabulary.tokens), WIDTH)
    first, *others = vocabulary.word_ids
    head[first, PROMPT] = 2.0
    for place, following in enumerate([*others, vocabulary.id_of(vocabulary.turn_end)]):
        head[following, FIRST_WORD + place] = 2.0
    head[first, FIRST_WORD + len(others)] = 1.0
    return head


def _head_of_one_token(vocabulary: Vocabulary, token: str) -> Array:
    """The same token, whatever came before."""
    head = _zeros(len(vocabulary.tokens), WIDTH)
    head[vocabulary.id_of(token), [PROMPT, *range(FIRST_WORD, WIDTH)]] = 2.0
    return head


# The targets


def _write_gemma4(path: Path, vocabulary: Vocabulary, head: Array) -> Path:
    """A gemma4 target: of six layers five have a sliding window."""
    layers, heads, kv_heads = 6, 2, 1
    head_dim, head_dim_swa = 128, 64
    windowed = [(layer + 1) % 6 != 0 for layer in range(layers)]
    writer = _writer(path, "gemma4", vocabulary, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_uint32("gemma4.attention.key_length_swa", head_dim_swa)
    writer.add_uint32("gemma4.attention.value_length_swa", head_dim_swa)
    writer.add_sliding_window(256)
    writer.add_array("gemma4.attention.sliding_window_pattern", windowed)
    writer.add_uint32("gemma4.attention.shared_kv_layers", 0)
    writer.add_uint32("gemma4.embedding_length_per_layer_input", 0)
    writer.add_float32("gemma4.rope.freq_base_swa", 1e4)
    writer.add_uint32("gemma4.rope.dimension_count_swa", head_dim_swa)
    writer.add_float32("gemma4.final_logit_softcapping", 30.0)
    tensors = _ends(vocabulary, head) | {"rope_freqs.weight": _ones(head_dim // 2)}
    for layer, is_windowed in enumerate(windowed):
        block = _noise_block(heads, kv_heads, head_dim_swa if is_windowed else head_dim, Noise(seed=layer))
        # gemma4 normalises what a block adds; this weight makes it little again.
        block["post_attention_norm"] = block["post_ffw_norm"] = _ones(WIDTH) / np.float32(8)
        tensors |= _of_layer(layer, block)
    return _finish(path, writer, tensors)


def _write_qwen3(path: Path, vocabulary: Vocabulary, head: Array) -> Path:
    """A qwen3 target."""
    layers, heads, kv_heads, head_dim = 4, 4, 2, 32
    writer = _writer(path, "qwen3", vocabulary, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    writer.add_rope_freq_base(1e4)
    tensors = _ends(vocabulary, head)
    for layer in range(layers):
        tensors |= _of_layer(layer, _noise_block(heads, kv_heads, head_dim, Noise(seed=layer)))
    return _finish(path, writer, tensors)


def _ends(vocabulary: Vocabulary, head: Array) -> Tensors:
    """What comes before and after a target's layers."""
    return {
        "token_embd.weight": _embeddings(vocabulary),
        "output.weight": head,
        "output_norm.weight": _ones(WIDTH),
    }


def _noise_block(heads: int, kv_heads: int, head_dim: int, noise: Noise) -> Tensors:
    """A layer's tensors by their short names: attention and feed-forward of noise, with weak outputs."""
    return _norms(head_dim) | {
        "attn_q": noise.tensor(heads * head_dim, WIDTH),
        "attn_k": noise.tensor(kv_heads * head_dim, WIDTH),
        "attn_v": noise.tensor(kv_heads * head_dim, WIDTH),
        "attn_output": noise.tensor(WIDTH, heads * head_dim) / np.float32(8),
        "ffn_gate": noise.tensor(FEED_FORWARD, WIDTH),
        "ffn_up": noise.tensor(FEED_FORWARD, WIDTH),
        "ffn_down": noise.tensor(WIDTH, FEED_FORWARD) / np.float32(8),
    }


def _norms(head_dim: int) -> Tensors:
    """A layer's normalisations, by their short names, all one."""
    return {
        "attn_norm": _ones(WIDTH),
        "ffn_norm": _ones(WIDTH),
        "attn_q_norm": _ones(head_dim),
        "attn_k_norm": _ones(head_dim),
    }


# The drafters


def _write_dflash(path: Path, vocabulary: Vocabulary, *, reads_layers: tuple[int, ...]) -> Path:
    """
    A drafter in the ``dflash`` schema of merged upstream; embeddings and head it takes from its target.

    :param reads_layers: the target's layers whose mean it reads, as the schema counts them.
    """
    heads = BLOCK - 1
    writer = _writer(path, "dflash", vocabulary, layers=1, heads=heads, kv_heads=heads, head_dim=PROBE_DIM)
    writer.add_rope_freq_base(PROBE_ROPE_BASE)
    writer.add_uint32("dflash.block_size", BLOCK)
    writer.add_array("dflash.target_layers", list(reads_layers))
    share = np.eye(WIDTH, dtype=np.float32) / np.float32(len(reads_layers))
    tensors = {
        "fc.weight": np.concatenate([share] * len(reads_layers), axis=1),
        "enc.output_norm.weight": _ones(WIDTH),
        "output_norm.weight": _ones(WIDTH),
        **_of_layer(0, _lookback_block(heads, len(vocabulary.words))),
    }
    return _finish(path, writer, tensors)


def _lookback_block(heads: int, words: int) -> Tensors:
    """A layer whose head d names the word d places after the one that it finds d tokens back."""
    query, key, value = (_zeros(heads * PROBE_DIM, WIDTH) for _ in range(3))
    output = _zeros(WIDTH, heads * PROBE_DIM)
    for distance in range(1, heads + 1):
        start = (distance - 1) * PROBE_DIM
        rows = slice(start, start + PROBE_DIM)
        query[rows, CONSTANT], key[rows, CONSTANT] = _probe(distance)
        for place in range(words):
            value[start + place, FIRST_WORD + place] = 1.0
            output[FIRST_WORD + _drafted_after(place, distance, words), start + place] = 1.0
    sharp = _ones(PROBE_DIM) * np.float32(PROBE_SHARPNESS)
    return _norms(PROBE_DIM) | {
        "attn_q_norm": sharp,
        "attn_k_norm": sharp,
        "attn_q": query,
        "attn_k": key,
        "attn_v": value,
        "attn_output": output,
        "ffn_gate": _zeros(FEED_FORWARD, WIDTH),
        "ffn_up": _zeros(FEED_FORWARD, WIDTH),
        "ffn_down": _zeros(WIDTH, FEED_FORWARD),
    }


def _drafted_after(place: int, distance: int, words: int) -> int:
    """The place whose dimension makes the head draft the word ``distance`` after ``place``."""
    wanted = place + distance
    return (wanted - 1 + (MISTAKE if wanted % HARD == 0 else 0)) % words


def _probe(distance: int) -> tuple[Array, Array]:
    """
    A query and a key, the same for every token, that match best ``distance`` tokens apart.

    RoPE turns both by their positions; the query starts ``distance`` tokens' worth behind the key.
    """
    step = sqrt(sqrt(sqrt(0.5)))  # 2^(-1/8), see PROBE_ROPE_BASE
    frequency, query, key = 1.0, _zeros(PROBE_DIM), _zeros(PROBE_DIM)
    half = PROBE_DIM // 2
    for pair in range(half):
        cosine, sine = _cosine_and_sine(distance * frequency)
        query[pair], query[half + pair] = cosine, -sine
        key[pair] = 1.0
        frequency *= step
    return query, key


# The files


def _writer(
    path: Path, arch: str, vocabulary: Vocabulary, *, layers: int, heads: int, kv_heads: int, head_dim: int
) -> GGUFWriter:
    """A GGUF with what all models have: sizes, vocabulary, chat template."""
    writer = GGUFWriter(path, arch)
    writer.add_name(path.stem)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges([" ".join(_printable(letter) for letter in pair) for pair in MERGED])
    writer.add_eos_token_id(vocabulary.id_of(vocabulary.turn_end))
    writer.add_eot_token_id(vocabulary.id_of(vocabulary.turn_end))
    writer.add_pad_token_id(vocabulary.id_of("<|endoftext|>"))
    writer.add_mask_token_id(vocabulary.id_of("<|mask|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.template)
    return writer


def _of_layer(layer: int, block: Tensors) -> Tensors:
    """A layer's tensors by their full names."""
    return {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}


def _finish(path: Path, writer: GGUFWriter, tensors: Tensors) -> Path:
    """Write the file, its tensors in the order of their names."""
    for name in sorted(tensors):
        writer.add_tensor(name, tensors[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# Text as a byte-level BPE writes it


def _byte_characters() -> list[str]:
    """The printable character that stands for each of the 256 bytes, as GPT-2 chose them."""
    stand_ins = iter(range(256, 512))
    return [chr(byte if _is_printable(byte) else next(stand_ins)) for byte in range(256)]


def _is_printable(byte: int) -> bool:
    return ord("!") <= byte <= ord("~") or (0xA1 <= byte <= 0xFF and byte != 0xAD)


def _printable(text: str) -> str:
    characters = _byte_characters()
    return "".join(characters[byte] for byte in text.encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Wanted one argument, the folder to write to. Fix: python -m beeyard.tiny FOLDER")
    for written in write_all(Path(sys.argv[1])):
        print(written)
