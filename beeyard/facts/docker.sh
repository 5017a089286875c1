# shellcheck shell=sh
# What of a host's Docker Engine decides whether it can run containers of ours: lines KEY=VALUE. A missing thing is an
# empty value or no line, never an error. A part of the scripts of docker.py and machine.py.

within() { # SECONDS COMMAND…
    if command -v timeout >/dev/null; then timeout -k 1 "$@"; else
        shift
        "$@"
    fi
}

disk() { # PATH: of the file system where it lies, or will lie: device, free and all KiB, what df calls it
    place=$1
    until [ -e "$place" ]; do place=$(dirname "$place"); done
    row=$(within 5 df -Pk "$place" 2>/dev/null |
        sed -n '2s/^\(.*[^ ]\)  *\([0-9][0-9]*\)  *[0-9][0-9]*  *\([0-9][0-9]*\)  *[0-9]*% .*/\3|\2|\1/p')
    [ -z "$row" ] || printf 'disk=%s|%s|%s\n' "$(stat -c %d "$place")" "$row" "$1"
}

docker_engine() { # SECONDS that the engine may take for an answer
    docker=$(command -v docker)
    echo "command=$docker"
    echo "candidate=$(apt-cache policy docker.io 2>/dev/null | sed -n 's/^ *Candidate: *//p')"
    echo "toolkit=$(command -v nvidia-ctk)"
    [ -n "$docker" ] || return 0
    echo "path=$(readlink -f "$docker")"
    echo "compose=$(timeout -k 1 "$1" docker compose version --short 2>/dev/null)"
    echo "buildx=$(timeout -k 1 "$1" docker buildx version 2>/dev/null | cut -d' ' -f2)"
    status=0
    said=$(timeout -k 1 "$1" docker info --format '{{json .}}' 2>&1) || status=$?
    # A warning or an error has a line of its own, before or after.
    info=$(printf '%s\n' "$said" | grep '^{')
    [ -z "$info" ] || printf 'info=%s\n' "$info"
    case $status in
    0) ;;
    124 | 137) echo "silent=docker info did not answer within $1 seconds" ;;
    *) printf 'silent=%s\n' "$(printf '%s\n' "$said" | grep -v '^{' | tail -n 1)" ;;
    esac
    for file in /etc/cdi/* /var/run/cdi/*; do
        grep -qs 'nvidia.com/gpu' "$file" && echo "cdi=$file"
    done
    home=$(printf '%s\n' "$info" | sed -n 's/.*"DockerRootDir":"\([^"]*\)".*/\1/p')
    case $info in
    *io.containerd.snapshotter*) # images are containerd's then: Docker's own, or the system's
        for store in "$home/containerd/daemon" /var/lib/containerd; do
            if [ -d "$store" ]; then home=$store && break; fi
        done
        ;;
    esac
    [ -z "$home" ] || { echo "store=$home" && disk "$home"; }
}
