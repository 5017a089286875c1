"""Headers of drafters, written by the library that converters use: which kind each is, by keys and tensors."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from beeyard.catalog import CatalogError
from beeyard.gguf_header import read_header


def drafter(folder: Path, *tensors: str, **keys: list[int]) -> bytes:
    writer = GGUFWriter(folder / "d.gguf", "dflash")
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_embedding_length(64)
    writer.add_token_list(["a", "b"])
    for key, value in keys.items():
        writer.add_array(f"dflash.{key}", value)
    for name in ("fc.weight", *tensors):
        writer.add_tensor(name, np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return (folder / "d.gguf").read_bytes()


@pytest.mark.case("DFL-03")
@pytest.mark.parametrize(
    ("tensors", "keys", "kind"),
    [
        ((), {"target_layers": [1, 2]}, None),
        (("selector_hidden.weight", "blk.0.attn_conv_base"), {"target_layers": [1, 2]}, "dflash-2"),
        (("markov_w1.weight",), {"target_layers": [1, 2]}, "dspark"),
        ((), {"target_layer_ids": [1, 2]}, "early"),
    ],
)
def test_the_kind_of_a_drafter(
    tmp_path: Path, tensors: tuple[str, ...], keys: dict[str, list[int]], kind: str | None
) -> None:
    content = drafter(tmp_path, *tensors, **keys)
    found = read_header(lambda offset, length: content[offset : offset + length], "d.gguf")
    assert (found.architecture, found.drafter, found.words) == ("dflash", kind, 2)


def test_a_drafter_whose_list_of_tensors_was_cut_is_no_model(tmp_path: Path) -> None:
    content = drafter(tmp_path, "selector_hidden.weight")
    cut = content[: content.index(b"selector_hidden")]
    with pytest.raises(CatalogError, match=r"d\.gguf has no GGUF header"):
        read_header(lambda offset, length: cut[offset : offset + length], "d.gguf")
