"""The budget's caches beside those that a real llama-server allocates, on the CPU, for models of many shapes."""

import re
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from beeyard.budget import MIB, Plan, Row, Weights, budget
from beeyard.catalog import Baseline, Decoding, DFlash, KvTypes, Settings
from beeyard.lockfile import local_lock
from tests.plan.conftest import free_port
from tests.real_server import unpack
from tests.tiny_gguf import Shape, write

PATIENCE_S = 60
# As logged: rounded to a hundredth.
ROUNDING_BYTES = 0.005 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real llama-server."""
    return unpack(tmp_path_factory.mktemp("engine"))


class Case(NamedTuple):
    """A server: what it serves, how."""

    shape: Shape
    settings: Settings
    draft: Shape | None = None
    draft_max: int | None = None


def settings(kv: tuple[str, str] = ("f16", "f16"), **more: object) -> Settings:
    return Settings.model_validate({"context": 8192, "gpu_layers": 0, "kv": KvTypes(k=kv[0], v=kv[1]), **more})


PLAIN = Shape(layers=4)
GROUPED = Shape(layers=3, heads=8, kv_heads=2, head=128)
WINDOWED = Shape("gemma4", layers=6, window=1024, kv_heads=2, head=128, head_swa=64)
SHARING = Shape("gemma4", layers=9, window=512, shared_layers=3)
HYBRID = Shape("qwen35", layers=8, state=64, state_heads=8)
DRAFTER = Shape("dflash", layers=2)
FINE, MIXED = ("q8_0", "q8_0"), ("q5_0", "q4_1")
CASES = {
    "plain": Case(PLAIN, settings()),
    "plain, q8_0": Case(GROUPED, settings(FINE, context=10000)),
    "plain, three slots": Case(PLAIN, settings(MIXED, slots=3)),
    "plain, three slots, unified": Case(PLAIN, settings(("q5_1", "iq4_nl"), slots=3, kv_unified=True)),
    "plain, q4_0 and f32": Case(PLAIN, settings(("q4_0", "f32"))),
    "window": Case(WINDOWED, settings()),
    "window, unified": Case(WINDOWED, settings(FINE, kv_unified=True)),
    "window, three slots": Case(WINDOWED, settings(MIXED, slots=3, context=6144)),
    "window, three slots, unified": Case(WINDOWED, settings(MIXED, slots=3, kv_unified=True)),
    "window, seven slots": Case(WINDOWED, settings(slots=7, ubatch=256)),
    "window, small context": Case(WINDOWED, settings(context=1000, batch=64)),
    "window, shared layers": Case(SHARING, settings(MIXED)),
    "hybrid": Case(HYBRID, settings(MIXED)),
    "hybrid, three slots": Case(HYBRID, settings(slots=3)),
    "drafter": Case(PLAIN, settings(FINE), DRAFTER),
    "drafter, window, three slots": Case(WINDOWED, settings(MIXED, slots=3), DRAFTER),
    "drafter with a window": Case(PLAIN, settings(), Shape("dflash", layers=4, window=512, full_every=2)),
    "drafter, hybrid": Case(HYBRID, settings(MIXED, slots=2, kv_unified=True), DRAFTER),
    "drafter, hybrid, five deep": Case(HYBRID, settings(), DRAFTER, draft_max=5),
}


def logged(server: Path, case: Case, model: Path, draft: Path | None) -> list[str]:
    """What the server logs until it is ready; the very process is stopped then."""
    chosen = case.settings
    assert chosen.kv is not None
    command = [
        str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(free_port()), "-v",
        "-ngl", "0", "--no-warmup", "--fit", "off", "--flash-attn", "on", "-np", str(chosen.slots),
        "-c", str(chosen.context), "-b", str(chosen.batch), "-ub", str(chosen.ubatch),
        "--cache-type-k", chosen.kv.k, "--cache-type-v", chosen.kv.v,
    ]  # fmt: skip
    command += ["--kv-unified"] if chosen.kv_unified else []
    if draft is not None:
        command += ["--spec-draft-model", str(draft), "--spec-type", "draft-dflash", "--spec-draft-ngl", "0"]
    if case.draft_max is not None:
        command += ["--spec-draft-n-max", str(case.draft_max)]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        # A server that hangs ends the loop below, too.
        watch = threading.Timer(PATIENCE_S, process.kill)
        watch.start()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            # All is allocated; what follows is the chat template's.
            if "new slot" in line:
                break
        watch.cancel()
        process.kill()
    assert any("new slot" in line for line in lines), "\n".join(lines[-20:])
    return lines


def sizes(lines: list[str], what: str) -> list[float]:
    """The sizes in bytes that lines name, as in `CPU KV buffer size = 8.00 MiB`, in the order of the log."""
    found = (re.search(rf"{what} buffer size = +([\d.]+) MiB", line) for line in lines)
    return [float(match[1]) * MIB for match in found if match]


def rows_of(rows: tuple[Row, ...], names: str) -> list[int]:
    return [row.bytes for row in rows if re.search(names, row.name)]


def header_of(path: Path) -> Weights:
    lock = local_lock(path)
    assert lock.gguf is not None
    return Weights(lock.gguf, lock.size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("name", CASES)
def test_every_cache_is_as_large_as_the_server_allocates_it(server: Path, folder: Path, name: str) -> None:
    case = CASES[name]
    model = write(folder / "model.gguf", case.shape)
    draft = None if case.draft is None else write(folder / "draft.gguf", case.draft)
    decoding: Decoding = Baseline(kind="baseline")
    if draft is not None:
        decoding = DFlash(kind="dflash", draft_model="draft", draft_max=case.draft_max)
    drafting = None if draft is None else header_of(draft)
    ours = budget(Plan(header_of(model), case.settings, "llama.cpp", decoding, drafting, "cpu"))
    lines = logged(server, case, model, draft)

    for mine, theirs in (
        (rows_of(ours.rows, "KV cache"), sizes(lines, "KV")),
        (rows_of(ours.rows, "recurrent"), sizes(lines, "RS")),
    ):
        assert len(mine) == len(theirs), (mine, theirs)
        for own, allocated in zip(mine, theirs, strict=True):
            assert abs(own - allocated) <= max(0.01 * allocated, ROUNDING_BYTES), (mine, theirs)
    # Estimates may be too large, never too small. A context may reserve anew: its last size is the one it keeps.
    assert sum(rows_of(ours.rows, "weights")) >= sum(sizes(lines, "model"))
    assert sum(rows_of(ours.rows, "compute")) >= max(sizes(lines, "compute"))


def test_logits_count_for_a_drafter_and_hardly_for_its_target(server: Path, folder: Path) -> None:
    case = Case(Shape(words=32768), settings(), Shape("dflash", layers=2, words=32768))
    assert case.draft is not None
    model, draft = write(folder / "words.gguf", case.shape), write(folder / "words-draft.gguf", case.draft)
    decoding = DFlash(kind="dflash", draft_model="draft")
    ours = budget(Plan(header_of(model), case.settings, "llama.cpp", decoding, header_of(draft), "cpu"))
    target, *_, drafting = sizes(logged(server, case, model, draft), "compute")
    assert target <= rows_of(ours.rows, "^compute")[0] < 2 * target
    assert drafting <= rows_of(ours.rows, "drafter's compute")[0] < 1.2 * drafting
