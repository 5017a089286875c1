"""What the plan finds out on real hosts before anything is changed: no way to the Hub, and too small a disk."""

from typing import Any

import pytest

from tests.testbed.conftest import HUB_THERE, PREFIX, Bed

HOST = "systemd"
pytestmark = pytest.mark.hosts(HOST)
# The Hub's machine is there, and nobody listens.
NOBODY = "http://beeyard-hub:1"
SMALL = "/mnt/beeyard-small"


@pytest.fixture
def bare(bed: Bed) -> str:
    """The systemd host, with nothing of ours on it."""
    bed.wipe(HOST)
    return HOST


def is_untouched(bed: Bed) -> bool:
    return bed.sh(HOST, f"test -e {PREFIX[HOST]} && echo there || echo none") == "none"


def test_a_host_without_a_way_to_the_hub_is_told_and_not_touched(bed: Bed, bare: str) -> None:
    run = bed.deploy(bare, env={"HF_ENDPOINT": NOBODY}, llama_preset="from-hub")
    assert run.code != 0
    said = " ".join(run.stderr.split())
    assert (
        f"this host does not reach {NOBODY}, where model hub-qwen3 and model hub-qwen3-dflash come from. Fix: "
        in said
    )
    assert is_untouched(bed)


def test_a_hub_that_is_gone_later_stops_no_second_deploy(bed: Bed, bare: str) -> None:
    assert bed.deploy(bare, llama_preset="from-hub").code == 0
    again = bed.deploy(bare, env={"HF_ENDPOINT": NOBODY}, llama_preset="from-hub")
    assert again.code == 0, again.output
    assert again.changed == []
    assert "does not reach" not in again.stderr


def test_a_mirror_alone_will_do(bed: Bed, bare: str) -> None:
    words: dict[str, Any] = {"llama_preset": "from-hub", "llama_model_source": f"{HUB_THERE}/releases/mirror"}
    run = bed.deploy(bare, "--dry", env={"HF_ENDPOINT": NOBODY}, **words)
    assert "does not reach" not in run.stderr


def test_models_and_engine_on_one_small_file_system_add_up(bed: Bed, bare: str) -> None:
    # The archive of 26 MB alone would fit there, and so would the models; not what is in the archive as well.
    bed.sh(bare, f"mkdir -p {SMALL}; mountpoint -q {SMALL} || mount -t tmpfs -o size=40m beeyard {SMALL}")
    try:
        words: dict[str, Any] = {
            "llama_preset": "from-hub",
            "llama_prefix": f"{SMALL}/b",
            "llama_models_dir": f"{SMALL}/m",
        }
        run = bed.deploy(bare, **words)
        assert run.code != 0
        said = " ".join(run.stderr.split())
        assert f"{SMALL}/m and {SMALL}/b are on one file system that has" in said
        assert "model files (" in said
        assert "the engine unpacked (" in said
        assert bed.sh(bare, f"ls -A {SMALL}") == ""
    finally:
        bed.sh(bare, f"umount {SMALL}; rmdir {SMALL}", check=False)
