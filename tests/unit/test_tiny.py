import hashlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from gguf import GGUFReader

from beeyard import tiny

ARCHITECTURES = {
    "tiny-gemma4": "gemma4",
    "tiny-gemma4-dflash": "dflash",
    "tiny-qwen3": "qwen3",
    "tiny-qwen3-dflash": "dflash",
    "tiny-stuck": "gemma4",
}
PAIRS = {
    "tiny-gemma4-dflash": "tiny-gemma4",
    "tiny-qwen3-dflash": "tiny-qwen3",
}
TARGETS = ["tiny-gemma4", "tiny-qwen3", "tiny-stuck"]
QUANTISED_BLOCK = 32  # values; a cache type such as q5_0 needs heads of whole blocks
MEMLOCK = 8 * 1024 * 1024  # bytes; what an unprivileged user may lock
PRESET_CONTEXT = 8192  # tokens; twice what the preset `tiny` asks


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {path.stem: path for path in tiny.write_all(tmp_path_factory.mktemp("models") / "tiny")}


@cache
def header(path: Path) -> GGUFReader:
    return GGUFReader(path)


def field(path: Path, name: str) -> object:
    found = header(path).get_field(name)
    assert found is not None, f"{path.name} has no {name}"
    return found.contents()


def values(path: Path, suffix: str) -> list[object]:
    return [found.contents() for name, found in header(path).fields.items() if name.endswith(suffix)]


def digests(paths: list[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_the_models_are_the_same_bytes_every_time(models: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "beeyard.tiny", str(tmp_path)]
    written = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(tiny.__file__).parents[1])
    again = [Path(line) for line in written.stdout.splitlines()]
    assert digests(again) == digests(list(models.values()))


def test_every_model_says_its_architecture_and_its_name(models: dict[str, Path]) -> None:
    assert {name: field(path, "general.architecture") for name, path in models.items()} == ARCHITECTURES
    assert {name: field(path, "general.name") for name, path in models.items()} == {n: n for n in ARCHITECTURES}


def test_no_file_carries_a_date_or_a_version_of_its_maker(models: dict[str, Path]) -> None:
    general = {name for path in models.values() for name in header(path).fields if name.startswith("general.")}
    assert general == {"general.architecture", "general.name", "general.file_type"}


@pytest.mark.parametrize(("drafter", "target"), PAIRS.items())
def test_a_drafter_has_its_targets_vocabulary(models: dict[str, Path], drafter: str, target: str) -> None:
    for name in ("tokens", "token_type", "merges", "mask_token_id", "eos_token_id"):
        key = f"tokenizer.ggml.{name}"
        assert field(models[drafter], key) == field(models[target], key)


@pytest.mark.parametrize(("drafter", "target"), PAIRS.items())
def test_a_pair_fits_the_default_memlock_limit(models: dict[str, Path], drafter: str, target: str) -> None:
    assert models[drafter].stat().st_size + models[target].stat().st_size < MEMLOCK


def test_the_families_have_different_vocabularies(models: dict[str, Path]) -> None:
    gemma, qwen = (field(models[name], "tokenizer.ggml.tokens") for name in ("tiny-gemma4", "tiny-qwen3"))
    assert gemma != qwen


def test_every_head_can_have_a_quantised_cache(models: dict[str, Path]) -> None:
    for path in models.values():
        lengths = [
            length
            for suffix in (".key_length", ".value_length", ".key_length_swa", ".value_length_swa")
            for length in values(path, suffix)
        ]
        assert lengths
        assert all(isinstance(length, int) and length % QUANTISED_BLOCK == 0 for length in lengths)


def test_every_context_is_longer_than_a_preset_asks(models: dict[str, Path]) -> None:
    for path in models.values():
        (context,) = values(path, ".context_length")
        assert isinstance(context, int)
        assert context >= PRESET_CONTEXT


@pytest.mark.parametrize("vocabulary", [tiny.GEMMA, tiny.QWEN])
def test_every_token_of_a_vocabulary_is_there_once(vocabulary: tiny.Vocabulary) -> None:
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens) == len(vocabulary.types)


@pytest.mark.parametrize("vocabulary", [tiny.GEMMA, tiny.QWEN])
def test_every_word_has_a_dimension_in_target_and_drafter(vocabulary: tiny.Vocabulary) -> None:
    assert len(vocabulary.words) <= min(tiny.WIDTH - tiny.FIRST_WORD, tiny.PROBE_DIM)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_has_a_vector_for_each_token(models: dict[str, Path], name: str) -> None:
    tokens = field(models[name], "tokenizer.ggml.tokens")
    assert isinstance(tokens, list)
    shapes = {tensor.name: tensor.shape.tolist() for tensor in header(models[name]).tensors}
    assert shapes["token_embd.weight"] == shapes["output.weight"] == [tiny.WIDTH, len(tokens)]
