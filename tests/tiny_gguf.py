"""Empty GGUF models of any shape, for which a real llama-server allocates memory. What they say is nonsense."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]
EMBEDDING, FEED_FORWARD = 64, 64
CONVOLUTION = 4


@dataclass(frozen=True)
class Shape:
    """What decides how much a server allocates; lengths in dimensions, window in tokens."""

    architecture: str = "qwen3"
    layers: int = 4
    heads: int = 2
    kv_heads: int = 2
    head: int = 64
    words: int = 512
    # gemma4, dflash: every so many-th layer attends to everything, the others to a window.
    window: int | None = None
    full_every: int = 3
    head_swa: int = 32
    shared_layers: int = 0
    # qwen35: the states of every layer but each fourth.
    state: int = 32
    groups: int = 2
    state_heads: int = 4

    def is_windowed(self, layer: int) -> bool:
        """Whether a layer attends to a window."""
        return self.window is not None and (layer + 1) % self.full_every != 0

    def is_recurrent(self, layer: int) -> bool:
        """Whether a layer keeps a state instead of keys and values."""
        return self.architecture == "qwen35" and (layer + 1) % 4 != 0


def write(path: Path, shape: Shape) -> Path:
    """Write a model of that shape, all its weights zero."""
    writer = GGUFWriter(path, shape.architecture)
    name = shape.architecture
    writer.add_context_length(65536)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.window is not None:
        writer.add_sliding_window(shape.window)
        writer.add_array(f"{name}.attention.sliding_window_pattern", [*map(shape.is_windowed, range(shape.layers))])
    if name == "gemma4":
        writer.add_uint32("gemma4.attention.key_length_swa", shape.head_swa)
        writer.add_uint32("gemma4.attention.value_length_swa", shape.head_swa)
        writer.add_uint32("gemma4.attention.shared_kv_layers", shape.shared_layers)
        writer.add_uint32("gemma4.embedding_length_per_layer_input", 0)
        writer.add_uint32("gemma4.rope.dimension_count_swa", shape.head_swa)
    if name == "qwen35":
        writer.add_uint32("qwen35.ssm.conv_kernel", CONVOLUTION)
        writer.add_uint32("qwen35.ssm.inner_size", shape.state * shape.state_heads)
        writer.add_uint32("qwen35.ssm.state_size", shape.state)
        writer.add_uint32("qwen35.ssm.time_step_rank", shape.state_heads)
        writer.add_uint32("qwen35.ssm.group_count", shape.groups)
        writer.add_uint32("qwen35.full_attention_interval", 4)
        writer.add_array("qwen35.rope.dimension_sections", [shape.head // 4, shape.head // 4, 0, 0])
    if name == "dflash":
        writer.add_uint32("dflash.block_size", 8)
        writer.add_array("dflash.target_layers", [1])
    _add_words(writer, shape.words)
    for key, tensor in sorted(_tensors(shape).items()):
        writer.add_tensor(key, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_words(writer: GGUFWriter, count: int) -> None:
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ"]
    control = ["<end>", "<mask>"]
    rest = [f"w{number}w" for number in range(count - len(letters) - len(control))]
    words = [*letters, *control, *rest]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(words)
    writer.add_token_types([TokenType.CONTROL if word in control else TokenType.NORMAL for word in words])
    writer.add_token_merges(["Ġ t"])
    writer.add_eos_token_id(words.index("<end>"))
    writer.add_pad_token_id(words.index("<end>"))
    writer.add_mask_token_id(words.index("<mask>"))
    writer.add_add_bos_token(False)


def _tensors(shape: Shape) -> Tensors:
    found = {"output_norm.weight": _zeros(EMBEDDING)}
    if shape.architecture == "dflash":
        found |= {"fc.weight": _zeros(EMBEDDING, EMBEDDING), "enc.output_norm.weight": _zeros(EMBEDDING)}
    else:
        found |= {
            "token_embd.weight": _zeros(shape.words, EMBEDDING),
            "output.weight": _zeros(shape.words, EMBEDDING),
        }
    if shape.architecture == "gemma4":
        found["rope_freqs.weight"] = _zeros(shape.head // 2)
    for layer in range(shape.layers):
        found |= {f"blk.{layer}.{key}": tensor for key, tensor in _block(shape, layer).items()}
    return found


def _block(shape: Shape, layer: int) -> Tensors:
    norms = ["attn_norm"]
    norms += {
        "gemma4": ["ffn_norm", "post_attention_norm", "post_ffw_norm"],
        "qwen35": ["post_attention_norm"],
    }.get(shape.architecture, ["ffn_norm"])
    block = {f"{norm}.weight": _zeros(EMBEDDING) for norm in norms}
    block |= {f"ffn_{part}.weight": _zeros(FEED_FORWARD, EMBEDDING) for part in ("gate", "up")}
    block["ffn_down.weight"] = _zeros(EMBEDDING, FEED_FORWARD)
    return block | (_states(shape) if shape.is_recurrent(layer) else _attention(shape, layer))


def _attention(shape: Shape, layer: int) -> Tensors:
    head = shape.head_swa if shape.architecture == "gemma4" and shape.is_windowed(layer) else shape.head
    gates = 2 if shape.architecture == "qwen35" else 1
    return {
        "attn_q.weight": _zeros(shape.heads * head * gates, EMBEDDING),
        "attn_k.weight": _zeros(shape.kv_heads * head, EMBEDDING),
        "attn_v.weight": _zeros(shape.kv_heads * head, EMBEDDING),
        "attn_output.weight": _zeros(EMBEDDING, shape.heads * head),
        "attn_q_norm.weight": _zeros(head),
        "attn_k_norm.weight": _zeros(head),
    }


def _states(shape: Shape) -> Tensors:
    values = shape.state * shape.state_heads
    convolved = 2 * shape.state * shape.groups + values
    return {
        "attn_qkv.weight": _zeros(convolved, EMBEDDING),
        "attn_gate.weight": _zeros(values, EMBEDDING),
        "ssm_conv1d.weight": _zeros(convolved, CONVOLUTION),
        "ssm_dt.bias": _zeros(shape.state_heads),
        "ssm_a": _zeros(shape.state_heads),
        "ssm_beta.weight": _zeros(shape.state_heads, EMBEDDING),
        "ssm_alpha.weight": _zeros(shape.state_heads, EMBEDDING),
        "ssm_norm.weight": _zeros(shape.state),
        "ssm_out.weight": _zeros(EMBEDDING, values),
    }


def _zeros(*size: int) -> NDArray[np.float32]:
    return np.zeros(size, np.float32)
