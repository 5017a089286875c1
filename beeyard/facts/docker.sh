# shellcheck shell=sh
# What of a host's Docker Engine decides whether it can run containers of ours: lines KEY=VALUE. A missing thing is an
# empty value or no line, never an error. A part of the scripts of docker.py and machine.py.

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
    [ -z "$home" ] || echo "free_kib=$(timeout -k 1 5 df -Pk "$home" 2>/dev/null | awk 'NR == 2 { print $4 }')"
}
