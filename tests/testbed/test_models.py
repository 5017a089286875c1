"""How model files come to a host: split ones, from the machine that deploys, and what verification says of them."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from beeyard.catalog import PROJECT
from tests.testbed.conftest import HUB_THERE, PREFIX, STATE, Bed

HOST, PEER = "systemd", "light"
pytestmark = pytest.mark.hosts(HOST, PEER)


def asked(part: str) -> int:
    """How often the Hub was asked for such a path."""
    log = (STATE / "hub" / "access.log").read_text().splitlines()
    return sum(part in json.loads(line)["path"] for line in log)


def test_all_parts_of_a_split_model_come_and_are_served(bed: Bed) -> None:
    bed.wipe(HOST)
    run = bed.deploy(HOST, llama_preset="split")
    assert run.code == 0, run.output
    served = bed.serving(HOST)
    model = Path(served[served.index("-m") + 1])
    assert model.name == "split-00001-of-00003.gguf"
    there = bed.sh(HOST, f"cd {model.parent} && ls *.gguf").split()
    assert there == [f"split-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert bed.deploy(HOST, llama_preset="split").changed == []


def test_a_part_that_is_damaged_is_found_and_fetched_again(bed: Bed) -> None:
    served = bed.serving(HOST)
    part = Path(served[served.index("-m") + 1]).with_name("split-00003-of-00003.gguf")
    bed.sh(HOST, f"printf x | dd of={part} bs=1 seek=1000 conv=notrunc 2>/dev/null")
    run = bed.deploy(HOST, llama_preset="split")
    assert run.code == 0, run.output
    said = bed.verify(HOST, "-k", "model_files", env={"DEEP": "1"}, llama_preset="split")
    assert "1 passed" in said, said


def test_what_the_machine_that_deploys_has_is_not_asked_of_the_hub(bed: Bed) -> None:
    bed.wipe(HOST)
    before = asked("/cdn/beeyard/tiny")
    run = bed.deploy(HOST, llama_preset="from-hub", llama_model_source=str(PROJECT / ".beeyard" / "tiny"))
    assert run.code == 0, run.output
    assert asked("/cdn/beeyard/tiny") == before
    assert "draft-dflash" in bed.serving(HOST)


def test_it_is_sent_as_a_whole_where_ssh_forwards_nothing(bed: Bed) -> None:
    bed.wipe(HOST)
    # Not a reload, which returns before sshd listens again.
    restart = "systemctl restart ssh"
    try:
        bed.sh(HOST, f"echo 'AllowTcpForwarding no' >/etc/ssh/sshd_config.d/beeyard-test.conf; {restart}")
        before = asked("/cdn/beeyard/tiny")
        run = bed.deploy(HOST, llama_preset="from-hub", llama_model_source=str(PROJECT / ".beeyard" / "tiny"))
        assert run.code == 0, run.output
        assert asked("/cdn/beeyard/tiny") == before, run.output
        # Another host's cannot come that way, and is no reason to fail.
        bed.wipe(HOST)
        run = bed.deploy(HOST, llama_preset="from-hub", llama_model_source="host:light")
        assert run.code == 0, run.output
        assert asked("/cdn/beeyard/tiny") > before
    finally:
        bed.sh(HOST, f"rm /etc/ssh/sshd_config.d/beeyard-test.conf; {restart}")


def test_a_host_gets_its_models_from_another_which_alone_asks_the_hub(bed: Bed) -> None:
    for host in (HOST, PEER):
        bed.wipe(host)
    before = asked("/cdn/beeyard/tiny")
    words: dict[str, Any] = {"llama_preset": "from-hub", "llama_model_source": f"host:{PEER}"}
    first = bed.deploy(HOST, "--limit", PEER, **words)  # both new, in one run
    assert first.code == 0, first.output
    by_one = asked("/cdn/beeyard/tiny") - before
    assert f"tiny-qwen3.gguf, on {PEER}" in first.stderr, first.stderr
    assert "draft-dflash" in bed.serving(HOST)
    bed.wipe(HOST)
    again = bed.deploy(HOST, **words)  # and later, when that one is in no run
    assert again.code == 0, again.output
    assert asked("/cdn/beeyard/tiny") - before == by_one
    assert bed.deploy(HOST, "--limit", PEER, **words).changed == []
    # It is the Hub's again where the other one has it not.
    bed.wipe(HOST)
    bed.wipe(PEER)
    alone = bed.deploy(HOST, **words)
    assert alone.code == 0, alone.output
    assert f"tiny-qwen3.gguf, on {PEER}: No such file. It comes from where the preset says" in alone.stderr, (
        alone.stderr
    )
    assert asked("/cdn/beeyard/tiny") - before == 2 * by_one


def test_a_host_that_is_not_there_is_named_before_anything_is_changed(bed: Bed) -> None:
    run = bed.deploy(HOST, llama_model_source="host:lite")
    assert run.code != 0
    assert "names host 'lite', which the inventory has not: docker, light, pod, systemd. Fix: " in run.stderr


def test_a_mirror_is_asked_before_the_hub_and_the_hub_for_what_it_lacks(bed: Bed) -> None:
    bed.wipe(HOST)
    folder = STATE / "hub" / "releases" / "mirror"
    (lock,) = bed.locks("hub-qwen3")
    place = folder / lock["sha256"][:12]
    place.mkdir(parents=True, exist_ok=True)
    (place / "tiny-qwen3.gguf").write_bytes((PROJECT / ".beeyard" / "tiny" / "tiny-qwen3.gguf").read_bytes())
    before = asked("tiny-qwen3.gguf"), asked("/cdn/beeyard/tiny")
    run = bed.deploy(HOST, llama_preset="from-hub", llama_model_source=f"{HUB_THERE}/releases/mirror")
    assert run.code == 0, run.output
    assert asked("tiny-qwen3.gguf") > before[0]
    # The drafter alone came from the Hub.
    assert asked("/cdn/beeyard/tiny") == before[1] + 1


def test_a_deploy_says_how_to_follow_a_download(bed: Bed) -> None:
    log = bed.sh(HOST, f"cat {PREFIX[HOST]}/log/fetch.log")
    assert "tiny-qwen3-dflash.gguf: 1 MB from http://beeyard-hub:2210/" in log
    assert os.environ.get("HF_TOKEN", "no token") not in log


def test_a_file_is_not_read_again_because_its_file_system_has_another_number(bed: Bed) -> None:
    # As after a boot on btrfs, ZFS, LVM or a container: the same file, on a device of another number.
    mount = "mount -t overlay beeyard -o lowerdir=/mnt/low,upperdir=/mnt/disk/up,workdir=/mnt/disk/work /mnt/models"
    fetch = f"sh {PREFIX[HOST]}/bin/fetch.sh"
    digest = hashlib.sha256(b"GGUF").hexdigest()
    try:
        bed.sh(HOST, "mkdir -p /mnt/low /mnt/disk /mnt/models /mnt/other; mount -t tmpfs beeyard /mnt/disk")
        bed.sh(HOST, f"mkdir /mnt/disk/up /mnt/disk/work; {mount}; printf GGUF >/mnt/models/a.gguf")
        bed.sh(HOST, f"{fetch} keep /mnt/models/a.gguf /mnt/models/a.gguf 4 {digest}")
        look = f"stat -c %d /mnt/models; {fetch} look /mnt/models/a.gguf {digest}"
        before, said = bed.sh(HOST, look).split()
        assert said == "verified"
        bed.sh(HOST, f"umount /mnt/models; mount -t tmpfs beeyard /mnt/other; {mount}")
        after, said = bed.sh(HOST, look).split()
        assert (after != before, said) == (True, "verified")
    finally:
        bed.sh(HOST, "umount /mnt/models /mnt/other /mnt/disk; rm -rf /mnt/*", check=False)
