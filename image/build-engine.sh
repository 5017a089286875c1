#!/usr/bin/env bash
# build-engine.sh SOURCE DIR: compiles llama-server from SOURCE and leaves it, with its libraries, in DIR.
#
# Environment: ACCELERATOR (cuda, cpu), CUDA_ARCHITECTURES, FA_ALL_QUANTS, JOBS, ENGINE_COMMIT, SOURCE_DATE_EPOCH.
# HOST_CXX, a g++-NUMBER, is taken in place of c++, with the gcc beside it. CONFIGURE_ONLY=1 stops before compiling. Every failure is a sentence that ends in a Fix.
#
# It runs in Dockerfile.cuda, and with BUILD_ON=host on a host: there a build goes on in the BUILD_DIR that a killed
# one left, and with fewer compilers where memory was short.
set -euo pipefail
source=$1 out=$2
build=${BUILD_DIR:-/tmp/build} gpus=${GPUS:-/gpus.yaml} nvcc=${NVCC:-/usr/local/cuda/bin/nvcc}
libraries=${LIBRARIES:-/libraries} build_on=${BUILD_ON:-docker}

die() {
  echo "$1. Fix: $2" >&2
  exit 1
}

# ---------------------------------------------------------------- memory and cores

memory_mib() { # the least of what is available and what a cgroup allows
  awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo
  local limit
  for limit in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    [ ! -r "$limit" ] || awk '/^[0-9]+$/ { printf "%d\n", $1 / 1048576 }' "$limit"
  done
}

jobs() {
  [ "${JOBS:-auto}" = auto ] || {
    echo "$JOBS"
    return
  }
  local cores least
  cores=$(nproc)
  least=$(memory_mib | sort -n | head -n 1)
  local fit=$((least / 1024))
  [ "$fit" -ge 1 ] || fit=1
  echo $((fit < cores ? fit : cores))
}

# ---------------------------------------------------------------- architectures

card() { # compute capability, key of presets/gpus.yaml: its value for the first card with that capability
  sed -nE "/compute_capability: \"$1\"/ { s/.*[{ ]$2: \"?([^,\"}]+).*/\1/p; q }" "$gpus"
}

cards() { sed -nE 's/.*compute_capability: "([0-9]+\.[0-9])".*/\1/p' "$gpus" | sort -uV; }

architectures() { # as CMake wants them
  local known arch capability chosen=()
  known=$("$nvcc" --list-gpu-arch | sed -nE 's/^compute_([0-9]+).*/\1/p')
  if [ -z "$CUDA_ARCHITECTURES" ]; then
    for capability in $(cards); do
      arch=${capability/./}
      ! grep -qx "$arch" <<<"$known" || chosen+=("$arch")
    done
  else
    read -ra chosen <<<"${CUDA_ARCHITECTURES//;/ }"
    for arch in "${chosen[@]}"; do
      [ "$arch" != native ] || die "CUDA architecture 'native' cannot be known in a build" \
        "name the card's, as CUDA_ARCHITECTURES=89 for an RTX 4090"
      [[ $arch =~ ^[0-9]+a?(-real)?$ ]] || die "CUDA architecture '$arch' is not a number, as CMake 3.28 writes them" \
        "name the card's, as CUDA_ARCHITECTURES=89 for an RTX 4090"
      local number=${arch%%[!0-9]*}
      grep -qx "$number" <<<"$known" || unknown_architecture "$number"
    done
  fi
  (IFS=';' && echo "${chosen[*]}")
}

unknown_architecture() {
  local capability="${1%?}.${1: -1}" name least cuda
  name=$(card "$capability" smi_name)
  least=$(card "$capability" min_cuda)
  cuda=$("$nvcc" --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')
  [ -n "$name" ] || die "CUDA $cuda does not know architecture $1, and no card of presets/gpus.yaml has it" \
    "take one of $("$nvcc" --list-gpu-arch | sed 's/compute_//' | paste -sd' ')"
  die "CUDA $cuda does not know architecture $1 ($name), which wants CUDA $least or newer" \
    "take an image of CUDA $least or newer as base, as docker-bake.hcl's cuda13, or leave $1 out"
}

# ---------------------------------------------------------------- the build

options() {
  printf '%s\n' -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON
  # For any x86-64: the backends are modules, and the loader picks the best that the CPU can run.
  printf '%s\n' -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON
  # Found from any directory. The engines' own default ends in the working directory.
  printf '%s\n' "-DCMAKE_INSTALL_RPATH=\$ORIGIN" -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON
  printf '%s\n' -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  # A web UI that the tree carries is built in; none is downloaded. TLS is a proxy's work.
  printf '%s\n' -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
  printf '%s\n' "-DLLAMA_BUILD_COMMIT=${ENGINE_COMMIT:0:7}"
  [ -z "${HOST_CXX:-}" ] || printf '%s\n' "-DCMAKE_C_COMPILER=${HOST_CXX/g++/gcc}" "-DCMAKE_CXX_COMPILER=$HOST_CXX" \
    "-DCMAKE_CUDA_HOST_COMPILER=$HOST_CXX"
  [ "$ACCELERATOR" = cuda ] || return 0
  local found
  found=$(architectures) || exit 1
  echo "architectures: $found" >&2
  printf '%s\n' -DGGML_CUDA=ON -DGGML_CUDA_FA=ON "$(all_quants)" -DGGML_CUDA_NCCL=OFF
  # No PTX: it is a quarter to a third of the code, for cards that a deploy would refuse the image to.
  found=$(sed -E 's/\b([0-9]+a?)(;|$)/\1-real\2/g' <<<"$found")
  printf '%s\n' "-DCMAKE_CUDA_ARCHITECTURES=$found" "-DCMAKE_CUDA_COMPILER=$nvcc"
  # libcuda is the driver's, which no build has.
  printf '%s\n' -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined
}

# FlashAttention for every pair of KV types. CMake says nothing of an option that a source does not know, and the pairs
# that it then leaves out run on the CPU: the newer name where the source has it.
all_quants() {
  if [ "$FA_ALL_QUANTS" = ON ] && grep -qs 'GGML_CUDA_FA_QUANTS' "$source/ggml/CMakeLists.txt"; then
    echo "-DGGML_CUDA_FA_QUANTS=all"
  else
    echo "-DGGML_CUDA_FA_ALL_QUANTS=$FA_ALL_QUANTS"
  fi
}

configure() {
  local -a chosen
  local listed
  listed=$(options) || exit 1
  mapfile -t chosen <<<"$listed"
  cmake -S "$source" -B "$build" -G Ninja -Wno-dev "${chosen[@]}"
}

compile() {
  local n=$1 log=$build/compile.log status=0
  echo "compiling with $n jobs ($(nproc) cores, $(memory_mib | sort -n | head -n 1) MiB of memory)"
  cmake --build "$build" --target llama-server --parallel "$n" 2>&1 | tee "$log" || status=$?
  [ "$status" != 0 ] || return 0
  if grep -qE 'Killed|signal terminated program|out of memory|fatal error: killed' "$log"; then
    if [ "$build_on" = host ] && [ "$n" -gt 1 ]; then
      echo "the compiler was killed for want of memory at $n jobs: going on with $((n / 2))"
      compile $((n / 2))
      return
    fi
    [ "$n" -gt 1 ] || die "the compiler was killed for want of memory with 1 job" "give the build more memory"
    die "the compiler was killed for want of memory at $n jobs" "build with JOBS=$((n / 2)), as make image JOBS=$((n / 2))"
  fi
  if grep -q 'No space left on device' "$log"; then
    [ "$build_on" != host ] || die "the disk is full" "free space where $build is, then run again: it goes on"
    die "the disk is full" "free space where Docker keeps its data, or remove old builds with: docker builder prune"
  fi
  local found
  found=$(failed_unit "$log")
  [ "$build_on" != host ] || die "the engine does not compile$found" \
    "choose another engine with llama_engine, or mend what it names and run again; the log has the compiler's words"
  die "the engine does not compile$found" "read the first error above"
}

failed_unit() { # log: the first unit that failed and why, as far as the log says it
  local unit reason
  unit=$(sed -nE 's/^FAILED: (\[code=[0-9]+\] )?([^ ]+).*/\2/p' "$1" | head -n 1 || true)
  reason=$(grep -E 'error:|undefined reference|^ld: |not found|No rule' "$1" | head -n 1 | cut -c1-200 || true)
  echo "${unit:+: $unit}${reason:+ ($reason)}"
}

collect() {
  mkdir -p "$out"
  # Files under the names that are asked for; the rest of a library's names would be copies in an image.
  find "$build/bin" -maxdepth 1 \( -name llama-server -o -name 'lib*.so*' \) -print0 | while IFS= read -r -d '' file; do
    name=$(basename "$file")
    [ -f "$file" ] || continue
    wanted=$(readelf -d "$file" | sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p')
    install -m 0755 "$(readlink -f "$file")" "$out/${wanted:-$name}"
  done
  strip --strip-unneeded "$out"/*
}

prove() { # it runs from anywhere, whole, and says what it sees
  local missing trial=$build/trial
  rm -rf "$trial"
  mkdir -p "$trial"
  cp -r "$libraries"/. "$out"/. "$trial"
  missing=$(ldd "$trial"/llama-server "$trial"/*.so* | awk '/not found/ && $1 !~ /^libcuda\.so/ { print $1 }' | sort -u)
  [ -z "$missing" ] || die "the server would miss $(paste -sd' ' <<<"$missing")" \
    "add it to image/collect-libraries.sh, or install its package on a host that compiles"
  (cd / && "$trial/llama-server" --version && "$trial/llama-server" --list-devices)
  rm -rf "$trial"
}

export CCACHE_DIR=${CCACHE_DIR:-/ccache} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-20G} CCACHE_BASEDIR=$build CCACHE_NOHASHDIR=1
[ -f "$source/CMakeLists.txt" ] || die "there is no engine in $source" \
  "check ENGINE_REPOSITORY and ENGINE_COMMIT, or give a checkout with --build-context source=DIR"
[ "$build_on" = host ] || rm -rf "$build"
configure
[ "${CONFIGURE_ONLY:-}" != 1 ] || exit 0
chosen_jobs=$(jobs)
compile "$chosen_jobs"
collect
prove
ccache --show-stats 2>/dev/null | grep -E 'Hits|Misses' || true
rm -rf "$build"
find "${out%/opt/llama}" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
