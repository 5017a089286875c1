# What a host is, a line a fact: KEY=VALUE. What it has not, it does not say. Changes nothing, needs no root, and hangs
# nowhere. Arguments: how many paths, the paths whose free space is wanted, then HOST:PORT of what must be reached.

within() { # SECONDS COMMAND…
    if command -v timeout >/dev/null; then timeout "$@"; else shift && "$@"; fi
}

nearest() {
    place=$1
    until [ -e "$place" ]; do place=$(dirname "$place"); done
    echo "$place"
}

# --- cards

gpu_fields=index,uuid,name,memory.total,memory.free,driver_version,ecc.mode.current,mig.mode.current,power.limit,temperature.gpu

ask_gpus() { # FIELDS
    within 20 nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>&1
}

if command -v nvidia-smi >/dev/null; then
    echo nvidia_smi=yes
    # A driver of before 2021 does not know its cards' compute capability.
    if said=$(ask_gpus "$gpu_fields,compute_cap") || said=$(ask_gpus "$gpu_fields"); then
        printf '%s\n' "$said" | sed 's/^/gpu=/'
        within 20 nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader,nounits \
            2>/dev/null | sed 's/^/holder=/'
        within 20 nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/driver_cuda=\1/p' | head -n 1
    else
        echo "gpu_fault=$(printf '%s' "${said:-nvidia-smi does not answer}" | tr '\n' ' ')"
    fi
fi
cat /sys/module/nvidia/version 2>/dev/null | sed 's/^/kernel_module=/'
for device in /dev/nvidia*; do [ -e "$device" ] && echo "device=$device"; done
seen=''
for nvcc in /usr/local/cuda/bin/nvcc $(command -v nvcc) /usr/local/cuda-*/bin/nvcc; do
    [ -x "$nvcc" ] || continue
    real=$(readlink -f "$nvcc")
    case $seen in *" $real "*) continue ;; esac
    seen="$seen $real "
    version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/\1/p')
    architectures=$("$nvcc" --list-gpu-arch 2>/dev/null | sed -n 's/^compute_\([0-9]*\).*/\1/p' | tr '\n' ' ')
    echo "nvcc=$nvcc|$version|$architectures"
done
command -v c++ >/dev/null && echo "cxx=$(c++ -dumpfullversion -dumpversion 2>/dev/null)"

# --- what it runs in

[ -d /run/systemd/system ] && echo init=systemd
if command -v systemd-detect-virt >/dev/null; then echo "virtualisation=$(systemd-detect-virt 2>/dev/null)"
elif [ -e /.dockerenv ]; then echo virtualisation=docker
elif [ -e /run/.containerenv ]; then echo virtualisation=podman
fi
# Over SSH a pod's variables are not there, but its first process has them. Only their names are looked at.
names=$(env | cut -d= -f1
    cat /proc/1/environ 2>/dev/null | tr '\0' '\n' | cut -d= -f1)
case "$names" in
*RUNPOD_POD_ID*) echo provider=runpod ;;
*VAST_CONTAINERLABEL* | *VAST_TCP_PORT_22*) echo provider=vast ;;
esac
[ -d /workspace ] && echo volume=/workspace
echo "uid=$(id -u)"
echo "ipc_lock=$(sed -n 's/^CapEff:\t*//p' /proc/self/status)"

# --- memory, processor, disk

sed -n 's/^MemTotal: *\([0-9]*\) kB/memory_kib=\1/p; s/^MemAvailable: *\([0-9]*\) kB/available_kib=\1/p' /proc/meminfo
# shellcheck disable=SC3045 # dash and busybox have it
echo "memlock=$(ulimit -H -l)"
# The least of its control group's limits, all the way up.
while IFS=: read -r _ controllers group; do
    case ",$controllers," in
    ,,) root=/sys/fs/cgroup file=memory.max ;;
    *,memory,*) root=/sys/fs/cgroup/memory file=memory.limit_in_bytes ;;
    *) continue ;;
    esac
    [ -d "$root$group" ] || group=''
    while :; do
        [ -r "$root$group/$file" ] && echo "limit=$(cat "$root$group/$file")"
        [ -n "${group#/}" ] || break
        group=${group%/*}
    done
done </proc/self/cgroup
echo "cpu_flags=$(sed -n 's/^flags[^:]*: *//p' /proc/cpuinfo | head -n 1)"
echo "cores=$(nproc 2>/dev/null)"
count=$1
shift
while [ "$count" -gt 0 ]; do
    echo "free=$(df -Pk "$(nearest "$1")" | awk 'NR == 2 { print $4 }') $1"
    shift
    count=$((count - 1))
done

# --- software and network

echo "kernel=$(uname -r)"
echo "glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)"
[ -r /etc/os-release ] && (
    # shellcheck source=/dev/null
    . /etc/os-release
    echo "distribution=${ID:-}"
    echo "release=${VERSION_ID:-}"
)
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" { print "listening=" substr($2, length($2) - 3) }' | sort -u
if command -v timedatectl >/dev/null; then
    echo "synchronised=$(within 5 timedatectl show --property=NTPSynchronized --value 2>/dev/null)"
fi
if [ $# -gt 0 ]; then
    for address; do
        (
            if command -v curl >/dev/null; then
                code=0
                curl --silent --output /dev/null --connect-timeout 4 --max-time 5 "http://$address/" || code=$?
                # Whoever answers with something that is no HTTP has been reached.
                case $code in 5 | 6 | 7 | 28) echo "reachable=no $address" ;; *) echo "reachable=yes $address" ;; esac
            fi
        ) &
    done
    wait
fi
if command -v docker >/dev/null; then
    echo "docker=$(readlink -f "$(command -v docker)")"
    if info=$(within 10 docker info --format '{{json .}}' 2>/dev/null); then echo "docker_info=$info"; fi
    echo "compose=$(within 10 docker compose version --short 2>/dev/null)"
    command -v nvidia-ctk >/dev/null && echo toolkit=yes
    grep -qs 'nvidia.com/gpu' /etc/cdi/* /var/run/cdi/* && echo cdi=yes
fi
exit 0
