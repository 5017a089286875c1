"""A stand-in of nvidia-smi for hosts without a card: it answers the queries that the real one documents."""

UUID = "GPU-5a1c2b9e-0000-4000-8000-000000000000"
SCRIPT = r"""#!/bin/sh
capability=@CAPABILITY@ uuid=@UUID@ name='@NAME@' total=@TOTAL@ used=@USED@
fields='' kind=table
for word; do
    case $word in
    --query-gpu=*) fields=${word#*=} kind=gpu ;;
    --query-compute-apps=*) fields=${word#*=} kind=apps ;;
    --list-gpus | -L) kind=list ;;
    esac
done
row() { # PID
    said=''
    for field in $(echo "$fields" | tr , ' '); do
        case $field in
        index) value=0 ;;
        uuid | gpu_uuid) value=$uuid ;;
        name) value=$name ;;
        compute_cap) value=$capability ;;
        memory.total) value=$total ;;
        memory.used | used_memory | used_gpu_memory) value=$used ;;
        memory.free) value=$((total - used)) ;;
        driver_version) value=570.86.15 ;;
        ecc.mode.current | mig.mode.current) value='[N/A]' ;;
        power.limit) value=450.00 ;;
        temperature.gpu) value=41 ;;
        pid) value=$1 ;;
        process_name) value=/opt/llama/llama-server ;;
        *) echo "Field \"$field\" is not a valid field to query." && exit 2 ;;
        esac
        said="$said${said:+, }$value"
    done
    echo "$said"
}
case $kind in
gpu) row ;;
apps) for pid in @PIDS@; do row "$pid"; done ;;
list) echo "GPU 0: $name (UUID: $uuid)" ;;
table) echo "| NVIDIA-SMI 570.86.15    Driver Version: 570.86.15    CUDA Version: 12.8     |" ;;
esac
"""


def script(
    capability: str = "8.9",
    name: str = "NVIDIA GeForce RTX 4090",
    total_mib: int = 24564,
    used_mib: int = 512,
    pids: str = "$(pgrep -x llama-server)",
) -> str:
    """
    The program, for one card.

    :param pids: a shell's words: the processes that have ``used_mib`` of its memory each
    """
    values = {
        "CAPABILITY": capability, "UUID": UUID, "NAME": name, "TOTAL": str(total_mib), "USED": str(used_mib),
        "PIDS": pids,
    }  # fmt: skip
    text = SCRIPT
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
