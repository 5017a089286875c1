"""What NVIDIA's tools print, as drivers 460 to 610 print it."""

import pytest

from beeyard import nvidia_smi
from beeyard.machine import Gpu, Holder

FIELDS = (
    "index,uuid,name,compute_cap,memory.total,memory.free,driver_version,ecc.mode.current,mig.mode.current,"
    "power.limit,temperature.gpu"
)
CARD_0, CARD_1 = "GPU-8f6dd7a4-0a6e-0f2b-7d64-1b1c5b8b0a11", "GPU-3c0b5b3e-9f0f-4e6c-9d0e-6a4f5b1c2d33"
RTX_3090 = f"0, {CARD_0}, NVIDIA GeForce RTX 3090, 8.6, 24576, 24124, 550.54.14, [N/A], [N/A], 350.00, 34"
RTX_4090 = f"1, {CARD_1}, NVIDIA GeForce RTX 4090, 8.9, 24564, 5210, 550.54.14, Disabled, [N/A], 450.00, 41"
A100 = f"0, {CARD_0}, NVIDIA A100-PCIE-40GB, 8.0, 40960, 40326, 550.54.14, Enabled, Enabled, 250.00, 38"
FALLEN = "Unable to determine the device handle for GPU0000:01:00.0: Unknown Error"


def cards(*said: str, fields: str = FIELDS, status: str = "0") -> tuple[tuple[Gpu, ...], str]:
    return nvidia_smi.cards(fields, said, {}, status)


def test_two_cards_of_different_kinds() -> None:
    holders = {CARD_1: (Holder(pid=1717, name="llama-server", used_mib=18944),)}
    assert nvidia_smi.cards(FIELDS, [RTX_3090, RTX_4090], holders) == (
        (
            Gpu(
                index=0,
                uuid=CARD_0,
                name="NVIDIA GeForce RTX 3090",
                compute_capability="8.6",
                memory_total_mib=24576,
                memory_free_mib=24124,
                power_limit_w=350.0,
                temperature_c=34,
            ),
            Gpu(
                index=1,
                uuid=CARD_1,
                name="NVIDIA GeForce RTX 4090",
                compute_capability="8.9",
                memory_total_mib=24564,
                memory_free_mib=5210,
                ecc=False,
                power_limit_w=450.0,
                temperature_c=41,
                holders=holders[CARD_1],
            ),
        ),
        "",
    )
    assert nvidia_smi.driver(FIELDS, [RTX_3090, RTX_4090]) == "550.54.14"


def test_a_card_that_is_cut_into_instances() -> None:
    (card,), fault = cards(A100)
    assert (card.mig, card.ecc, fault) == (True, True, "")


@pytest.mark.parametrize(
    "silence", ["[N/A]", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "N/A", "[GPU is lost]"]
)
def test_what_a_card_does_not_say_is_none(silence: str) -> None:
    row = f"0, {CARD_0}, Tesla K80, {silence}, 11441, 11376, {silence}, {silence}, {silence}, {silence}, {silence}"
    (card,), fault = cards(row)
    assert (card.compute_capability, card.ecc, card.mig) == ("", None, False)
    assert (card.power_limit_w, card.temperature_c, fault) == (None, None, "")
    assert nvidia_smi.driver(FIELDS, [row]) == ""


@pytest.mark.parametrize(
    ("name", "silence"),
    [("NVIDIA GB10", "[N/A]"), ("NVIDIA A100", "[Insufficient Permissions]"), ("[GPU is lost]", "[GPU is lost]")],
)
def test_a_card_that_does_not_say_its_memory_is_a_fault_and_hides_no_other(name: str, silence: str) -> None:
    silent = f"0, {CARD_0}, {name}, 12.1, {silence}, {silence}, 580.95.05, [N/A], [N/A], [N/A], 36"
    (card,), fault = cards(silent, RTX_4090)
    assert card.index == 1
    assert fault == f"GPU 0 ({name}) has for memory.total: {silence}"


@pytest.mark.parametrize(
    ("said", "status", "fault"),
    [
        (["No devices were found"], "6", "No devices were found"),
        (
            ["Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 550.54"],
            "18",
            "Failed to initialize NVML: Driver/library version mismatch NVML library version: 550.54",
        ),
        (["Failed to initialize NVML: Unknown Error"], "255", "Failed to initialize NVML: Unknown Error"),
        ([FALLEN, ""], "255", FALLEN),
        ([], "124", "nvidia-smi did not answer"),
        (["Killed"], "137", "nvidia-smi did not answer"),
        ([], "127", "nvidia-smi ended with status 127 and said nothing"),
        ([], "0", ""),
    ],
)
def test_what_it_says_instead_of_a_card_is_the_fault(said: list[str], status: str, fault: str) -> None:
    assert cards(*said, status=status) == ((), fault)


def test_a_card_that_fell_off_the_bus_hides_no_other() -> None:
    (card,), fault = cards(FALLEN, RTX_4090, status="255")
    assert (card.index, fault) == (1, FALLEN)


def test_a_warning_beside_cards_is_no_fault() -> None:
    (card,), fault = cards(RTX_3090, "WARNING: infoROM is corrupted at gpu 0000:01:00.0", status="14")
    assert (card.index, fault) == (0, "")


def test_a_driver_that_does_not_know_the_compute_capability() -> None:
    row = f"0, {CARD_0}, GeForce RTX 3090, 24268, 24265, 460.91.03, [N/A], [N/A], 350.00, 30"
    (card,), fault = cards(row, fields=FIELDS.replace("compute_cap,", ""))
    assert (card.name, card.compute_capability, card.memory_total_mib, fault) == ("GeForce RTX 3090", "", 24268, "")


@pytest.mark.parametrize("line", ["0, GPU-1, NVIDIA GeForce", RTX_3090.replace("24576", "24 GiB")])
def test_a_row_of_another_shape_is_an_error_that_shows_it(line: str) -> None:
    with pytest.raises(ValueError, match="nvidia-smi was asked for index,uuid") as error:
        cards(line)
    assert line in str(error.value)


def test_holders_by_card() -> None:
    rows = [
        f"{CARD_0}, 1717, /opt/beeyard/engines/a/bin/llama-server, 18944",
        f"{CARD_0}, 2020, /usr/share/code/code --type=gpu-process --token=sk-CANARY, a, 120",
        f"{CARD_1}, 4242, [Not Found], [N/A]",
        f"{CARD_1}, 4343, VLLM::EngineCore, [Insufficient Permissions]",
        r"GPU-x, 5, C:\Program Files\x.exe, [N/A]",
    ]
    assert nvidia_smi.holders(rows) == {
        CARD_0: (
            Holder(pid=1717, name="llama-server", used_mib=18944),
            Holder(pid=2020, name="code", used_mib=120),
        ),
        CARD_1: (Holder(pid=4242, name="", used_mib=None), Holder(pid=4343, name="VLLM::EngineCore", used_mib=None)),
        "GPU-x": (Holder(pid=5, name="Program", used_mib=None),),
    }


@pytest.mark.parametrize("line", ["No running processes found", "No devices were found", "", FALLEN])
def test_a_sentence_holds_no_card(line: str) -> None:
    assert nvidia_smi.holders([line]) == {}


@pytest.mark.parametrize(
    ("header", "cuda"),
    [
        ("| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |", "12.4"),
        ("| NVIDIA-SMI 525.85.12    Driver Version: 525.85.12    CUDA Version: 12.0     |", "12.0"),
        ("| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |", "13.3"),
        ("| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: N/A      |", ""),
        ("| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: ERR!     |", ""),
        ("", ""),
    ],
)
def test_the_cuda_that_a_driver_speaks(header: str, cuda: str) -> None:
    assert nvidia_smi.driver_cuda(header) == cuda


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.14", "550.54.14"),
        ("470.223.02", "470.223.02"),
        ("NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024", "535.183.01"),
        (
            "NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)",
            "580.95.05",
        ),
        ("610.47", "610.47"),
        ("", ""),
    ],
)
def test_the_loaded_kernel_module(text: str, version: str) -> None:
    assert nvidia_smi.kernel_module(text) == version


def test_a_kernel_module_without_a_version_is_an_error_that_shows_it() -> None:
    with pytest.raises(ValueError, match="kernel module's version is 'NVIDIA'"):
        nvidia_smi.kernel_module("NVIDIA")


def test_architectures_in_order() -> None:
    found = nvidia_smi.nvcc("/usr/bin/nvcc", "12.9", "compute_90 compute_100 compute_86 compute_120")
    assert found.architectures == ("86", "90", "100", "120")
    assert nvidia_smi.nvcc("/usr/bin/nvcc", "10.1", "").architectures == ()
