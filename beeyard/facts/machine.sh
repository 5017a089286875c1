# shellcheck shell=sh disable=SC2329 # functions are called by name, by ask
# What a host is: lines KEY=VALUE, a key as often as it has values, for machine_lines.py. A missing thing is an empty
# value or no line, never an error. Needs no root, changes nothing, and ends though a thing that is asked may hang.
#
# Arguments: ROOT SECONDS PATH…
#   ROOT     before /proc, /sys, /dev, /etc and places of CUDA; empty but in tests
#   SECONDS  that nvidia-smi or Docker may take for one answer
#   PATH     whose free space is wanted

root=$1 patience=$2
shift 2
# df and the like speak English; WSL keeps nvidia-smi aside. The other two would be what nproc answers.
export LC_ALL=C PATH="$PATH:/usr/lib/wsl/lib"
unset OMP_NUM_THREADS OMP_THREAD_LIMIT

# --- asking many things at once

answers=$(mktemp -d) || exit 1
trap 'rm -rf "$answers"' EXIT
asked=''

ask() { # NAME FUNCTION ARGUMENT…: into a file, so that one that hangs for good holds up nobody who reads our output
    answer=$answers/$1
    asked="$asked $1"
    shift
    (
        "$@"
        : >"$answer.done"
    ) >"$answer" 2>/dev/null </dev/null &
}

tell() { # SECONDS to wait at most: all that was said, and who did not finish
    left=$(($1 * 20))
    for name in $asked; do
        until [ -e "$answers/$name.done" ] || [ "$left" -le 0 ]; do
            sleep 0.05
            left=$((left - 1))
        done
        [ -e "$answers/$name.done" ] || echo "unfinished=$name"
        cat "$answers/$name"
    done
}

# --- cards and compilers

cards() { # again without a field that an old driver does not know
    fields=index,uuid,name,compute_cap,memory.total,memory.free,driver_version,ecc.mode.current,mig.mode.current
    fields=$fields,power.limit,temperature.gpu
    while :; do
        status=0
        said=$(within "$patience" nvidia-smi --query-gpu="$fields" --format=csv,noheader,nounits 2>&1) || status=$?
        unknown=$(printf '%s\n' "$said" | sed -n 's/^Field "\(.*\)" is not a valid field to query.*/\1/p' | head -n 1)
        fewer=$(echo ",$fields," | sed "s/,$unknown,/,/; s/^,//; s/,\$//")
        [ -n "$unknown" ] && [ "$fewer" != "$fields" ] || break
        fields=$fewer
    done
    echo "gpu_status=$status"
    echo "gpu_fields=$fields"
    printf '%s\n' "$said" | sed 's/^/gpu=/'
}

holders() {
    within "$patience" nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory \
        --format=csv,noheader,nounits | sed 's/^/holder=/'
}

header() {
    within "$patience" nvidia-smi | sed -n '/CUDA.*Version/{ s/^/header=/p; q; }'
}

compilers() { # the one that CMake is told to use comes first
    seen=' '
    local=$root/usr/local
    for nvcc in "$local"/cuda/bin/nvcc "$(command -v nvcc)" "$local"/cuda-*/bin/nvcc "$root"/opt/cuda/bin/nvcc; do
        [ -x "$nvcc" ] || continue
        file=$(readlink -f "$nvcc")
        case $seen in *" $file "*) continue ;; esac
        seen="$seen$file "
        version=$(within 5 "$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
        echo "nvcc=$version|$(within 5 "$nvcc" --list-gpu-arch | grep '^compute_' | tr '\n' ' ')|$nvcc"
    done
    # gcc says 12 to the second alone, clang does not know the first.
    echo "cxx=$(within 5 c++ -dumpfullversion -dumpversion || within 5 c++ -dumpversion)"
    # What a deploy would install: 4:14.2.0-1.
    echo "cxx_candidate=$(within 5 apt-cache policy g++ | sed -n 's/^ *Candidate: *//p')"
    for gxx in "$root"/usr/bin/g++-[0-9]*; do # beside it; each works only with the gcc of its version
        [ -x "$gxx" ] && [ -x "$root/usr/bin/gcc-${gxx##*-}" ] &&
            echo "gxx=$(within 5 "$gxx" -dumpfullversion -dumpversion)|$gxx"
    done
}

devices() {
    for device in "$root"/dev/nvidia* "$root"/dev/dxg; do
        [ -e "$device" ] && [ ! -d "$device" ] && echo "device=${device#"$root"}"
    done
}

kernel_module() {
    if [ -r "$root/sys/module/nvidia/version" ]; then echo "kernel_module=$(cat "$root/sys/module/nvidia/version")"
    else sed -n 's/^NVRM version:/kernel_module=/p' "$root/proc/driver/nvidia/version"; fi
}

# --- what it is, and who lends it

variables() { # of a pod, as NAME=VALUE; in an SSH session only the first process has them
    {
        cat "$root/proc/self/environ" "$root/proc/1/environ" | tr '\0' '\n'
        cat "$root/etc/rp_environment" "$root/etc/environment"
    } | sed -n "s/^export //; s/^\([A-Za-z_0-9]*\)=[\"']\{0,1\}\([^\"']*\).*/\1=\2/p"
}

variable() { # NAME: its first value
    variables | sed -n "s/^$1=//p" | head -n 1
}

provider() { # and what of it survives a stop
    if [ -n "$(variable RUNPOD_POD_ID)" ]; then
        echo provider=runpod
        for folder in /workspace /runpod-volume; do
            awk -v at="$folder" '$5 == at { print "volume=" at; exit }' "$root/proc/self/mountinfo"
        done
    elif variables | grep -q -e '^VAST_CONTAINERLABEL=' -e '^VAST_TCP_PORT_[0-9]*='; then
        # All of its disk does; this is where images of Vast.ai expect what is large.
        echo provider=vast
        folder=$(variable WORKSPACE)
        [ -d "$root${folder:=/workspace}" ] && echo "volume=$folder"
    fi
}

virtualisation() { # in the words of systemd-detect-virt, also where there is none
    found=$(within 5 systemd-detect-virt)
    [ -n "$found" ] || found=$(variable container)
    if [ -n "$found" ]; then :
    elif [ -e "$root/.dockerenv" ]; then found=docker
    elif [ -e "$root/run/.containerenv" ]; then found=podman
    elif grep -qi microsoft "$root/proc/sys/kernel/osrelease"; then found=wsl
    elif grep -q /docker "$root/proc/1/cgroup"; then found=docker
    elif grep -q /kubepods "$root/proc/1/cgroup"; then found=container-other
    elif grep -q '^flags.* hypervisor' "$root/proc/cpuinfo"; then found=vm-other
    fi
    echo "virtualisation=$found"
}

distribution() {
    for file in "$root/etc/os-release" "$root/usr/lib/os-release"; do
        sed -n "s/^ID=[\"']\{0,1\}\([^\"']*\).*/distribution=\1/p; s/^VERSION_ID=[\"']\{0,1\}\([^\"']*\).*/release=\1/p; s/^VERSION_CODENAME=[\"']\{0,1\}\([^\"']*\).*/codename=\1/p" \
            "$file" && return
    done
}

# --- what it lets a process have

limits() { # KEY FOLDER GROUP FILE…: the files' values, of a control group and of all above it
    key=$1 folder=$2 group=$3
    shift 3
    while :; do
        values=''
        for file; do
            read -r value <"$folder$group/$file" && values="$values $value"
        done
        [ -z "$values" ] || echo "$key=$values"
        [ -n "$group" ] || break
        group=${group%/*}
    done
}

control_groups() { # version 2 has one line, with no controllers
    groups=$root/sys/fs/cgroup
    while IFS=: read -r _ controllers path; do
        case ,$controllers, in
        ,,)
            limits memory_limit "$groups" "$path" memory.max
            limits quota "$groups" "$path" cpu.max
            ;;
        *,memory,*) limits memory_limit "$groups/memory" "$path" memory.limit_in_bytes ;;
        *,cpu,*) limits quota "$groups/cpu" "$path" cpu.cfs_quota_us cpu.cfs_period_us ;;
        esac
    done <"$root/proc/self/cgroup"
}

synchronised() {
    said=$(within 5 timedatectl show --property=NTPSynchronized --value)
    [ -n "$said" ] || said=$(within 5 chronyc -n tracking | sed -n 's/^Leap status *: *//p')
    echo "synchronised=$said"
}

# --- all of it

smi=$(command -v nvidia-smi)
echo "nvidia_smi=$smi"
if [ -n "$smi" ]; then
    ask cards cards
    ask holders holders
    ask header header
fi
ask docker docker_engine "$patience"
ask compilers compilers
ask synchronised synchronised
number=0
for path; do
    number=$((number + 1))
    ask "free.$number" disk "$path"
done

{
    devices
    kernel_module
    provider
    virtualisation
    distribution
    control_groups
    [ -d "$root/run/systemd/system" ] && echo init=systemd
    echo "uid=$(id -u)"
    echo "kernel=$(uname -r)"
    echo "glibc=$(getconf GNU_LIBC_VERSION)"
    echo "cores=$(nproc)"
    # shellcheck disable=SC3045 # not in POSIX, but in dash and busybox
    echo "memlock=$(ulimit -H -l)"
    sed -n 's/^CapEff:[^0-9a-f]*/capabilities=/p' "$root/proc/self/status"
    sed -n 's/^MemTotal: */memory=/p; s/^MemAvailable: */available=/p' "$root/proc/meminfo"
    sed -n '/^\(flags\|Features\)[^:]*:/{ s/^[^:]*: */cpu_flags=/p; q; }' "$root/proc/cpuinfo"
    cat "$root/proc/net/tcp" "$root/proc/net/tcp6" | awk '$4 == "0A" { print "listening=" $2 }'
} 2>/dev/null
tell $((2 * patience + 2))
exit 0
