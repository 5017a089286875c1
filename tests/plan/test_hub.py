"""Locking against a Hub that speaks the real one's API, its refusals included."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import PROJECT, CatalogError, HubFile, load_catalog
from beeyard.hub import file_url, lock_file
from beeyard.lockfile import add_model
from tests.plan.conftest import COMMIT, CONTENT, free_port, model


def source(repository: str = "bees/honey", file: str = "honey-Q4.gguf", revision: str = "main") -> HubFile:
    return HubFile(kind="hub", repository=repository, file=file, revision=revision)


def test_it_locks_commit_size_and_sha256(hub: Path) -> None:
    found = lock_file(source())
    assert found.size == len(CONTENT)
    assert found.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert found.revision == COMMIT
    assert file_url(source(), COMMIT).endswith(f"/bees/honey/resolve/{COMMIT}/honey-Q4.gguf")
    assert hub.is_dir()


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (
            source(repository="ants/hill"),
            "ants/hill does not exist, or is private. Fix: correct its name, or set HF_TOKEN",
        ),
        (source(repository="bees/hony"), "bees/hony does not exist, or is private (there is bees/honey). Fix: "),
        (source(file="honey-Q5.gguf"), "has no honey-Q5.gguf. Fix: use one of: honey-Q4.gguf"),
        (source(revision="v9"), "there is no such revision. Fix: "),
        (source(revision="mian"), "there is no such revision (there is main). Fix: "),
        (source(file="b-00002-of-00003.gguf"), "not the first part of a split file. Fix: name b-00001-of-00003.gguf"),
        (source(file="b-00001-of-00003.gguf"), "has no b-00001-of-00003.gguf. Fix: use one of: honey-Q4.gguf"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_refusals_are_told_apart(wanted: HubFile, complaint: str) -> None:
    with pytest.raises(CatalogError, match=re.escape(complaint)):
        lock_file(wanted)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"status": 429}, "the Hub has had too many requests from here. Fix: try again later, or set HF_TOKEN"),
        ({"status": 503}, "the Hub fails with 503. Fix: try again later"),
        ({"html": True}, "is not the Hub: a page of a proxy or a login, perhaps. Fix: "),
    ],
    ids=["429", "503", "html"],
)
def test_a_hub_in_trouble_is_told_apart(hub: Path, fault: dict[str, Any], complaint: str) -> None:
    (hub.parents[2] / "faults.json").write_text(json.dumps({"/api/models": [fault] * 20}))
    with pytest.raises(CatalogError, match=re.escape(complaint)):
        lock_file(source())


def test_a_gated_repository_names_the_page_and_a_wrong_token_is_not_shown(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hub / ".gated").touch()
    with pytest.raises(CatalogError, match=r"gated. Fix: accept its licence at .*/bees/honey with the token"):
        lock_file(source())
    (hub / ".token").write_text("hf_right")
    (hub / ".gated").unlink()
    monkeypatch.setenv("HF_TOKEN", "hf_CANARY")
    with pytest.raises(CatalogError, match="the Hub does not accept HF_TOKEN") as error:
        lock_file(source())
    assert "CANARY" not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert lock_file(source()).revision == COMMIT


def test_the_header_says_what_model_it_is(hub: Path) -> None:
    found = lock_file(source()).gguf
    assert found is not None
    assert (found.architecture, found.layers, found.heads, found.window) == ("gemma4", 60, 32, 1024)
    assert found.kv_heads == [16, 16, 16, 16, 16, 4]
    assert found.words == 300
    (hub / "other.gguf").write_bytes(model())
    (hub / "another.gguf").write_bytes(model(words=301))
    same, different = (lock_file(source(file=f"{name}.gguf")).gguf for name in ("other", "another"))
    assert same is not None
    assert different is not None
    assert same.vocabulary == found.vocabulary != different.vocabulary


def test_of_a_large_file_only_the_header_is_read(hub: Path) -> None:
    with (hub / "large.gguf").open("wb") as large:
        large.write(CONTENT)
        large.truncate(200 * 2**20)
    assert lock_file(source(file="large.gguf")).size == 200 * 2**20
    log = [json.loads(line) for line in (hub.parents[2] / "access.log").read_text().splitlines()]
    ranges = [entry["range"] for entry in log if "/cdn/" in entry["path"]]
    assert ranges == [f"bytes=0-{4 * 2**20 - 1}"]


def test_what_is_no_gguf_file_is_refused(hub: Path) -> None:
    (hub / "not.gguf").write_bytes(b"PK" + bytes(100))
    with pytest.raises(CatalogError, match=r"not.gguf has no GGUF header \(it starts with b'PK"):
        lock_file(source(file="not.gguf"))
    (hub / "cut.gguf").write_bytes(CONTENT[:200])
    with pytest.raises(CatalogError, match=r"cut.gguf has no GGUF header \(it ends within its header\)"):
        lock_file(source(file="cut.gguf"))


def test_all_parts_of_a_split_file_are_locked(hub: Path) -> None:
    parts = [CONTENT, b"two", b"three!"]
    for number, content in enumerate(parts, 1):
        (hub / f"big-{number:05}-of-00003.gguf").write_bytes(content)
    found = lock_file(source(file="big-00001-of-00003.gguf"))
    assert [(part.file, part.size) for part in found.parts] == [
        ("big-00002-of-00003.gguf", 3), ("big-00003-of-00003.gguf", 6)
    ]  # fmt: skip
    (hub / "big-00003-of-00003.gguf").unlink()
    with pytest.raises(CatalogError, match=r"has no big-00003-of-00003.gguf"):
        lock_file(source(file="big-00001-of-00003.gguf"))


def test_a_hub_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(CatalogError, match="Fix: check the network"):
        lock_file(source())


def test_a_token_with_white_space_inside_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_CANARY two")
    with pytest.raises(CatalogError) as error:
        lock_file(source())
    assert "CANARY" not in str(error.value)


def test_the_lock_keeps_its_comments_and_its_other_lines(hub: Path, tmp_path: Path) -> None:
    file = tmp_path / "lock.yaml"
    before = (
        "# kept\nengines: {}\nmodels:\n  a:  # kept too\n    size: 1\n  smollm2-135m-instruct-q4_1:\n    size: 5\n"
    )
    file.write_text(before)
    add_model(file, "smollm2-135m-instruct-q4_1", lock_file(source()))
    add_model(file, "tiny-stuck", lock_file(source()))
    text = file.read_text()
    assert text.startswith("# kept\nengines: {}\nmodels:\n  a:  # kept too\n    size: 1\n")
    assert text.count(f"size: {len(CONTENT)}") == 2
    assert "size: 5" not in text
    assert hub.is_dir()


def test_the_shipped_lock_is_what_the_tool_would_write(tmp_path: Path) -> None:
    shipped = PROJECT / "presets" / "lock.yaml"
    copy = tmp_path / "lock.yaml"
    copy.write_text(shipped.read_text())
    for name, entry in load_catalog([PROJECT / "presets"]).lock.models.items():
        add_model(copy, name, entry)
    assert copy.read_text() == shipped.read_text()
