#!/bin/sh
# Engines on a host: looked at, proven, compiled. Every failure is a sentence that ends in its Fix.
#
#   engine.sh look DIR                       prints intact, absent, or `damaged` and which files
#   engine.sh unpack TARBALL FRESH           a .tar.gz into a new folder
#   engine.sh put FRESH DIR BINARY ACCELERATOR
#       makes FRESH the engine DIR once its BINARY is there, misses no library and runs
#   engine.sh build DIR BINARY ACCELERATOR ARCHITECTURES REPOSITORY COMMIT [NVCC [CXX]]
#       compiles it, with g++-NUMBER as CXX where c++ will not do: below PREFIX/build, from where a killed build goes on; PREFIX/log/build.log shows how far it is
#
# DIR is PREFIX/engines/NAME. An engine has a list of its files (.files): what differs from it is damaged.
set -eu
export LC_ALL=C
STAMP=.files

fail() {
    echo "$1. Fix: $2" >&2
    exit 1
}

listed() { # names joined by commas
    paste -sd, | sed 's/,/, /g'
}

# Sizes, times and modes: a hash of some GB at each deploy would take longer than the rest of it.
files_of() { # DIR
    (cd "$1" && find . ! -name "$STAMP" \( -type f -o -type l \) -printf '%s|%T@|%m|%P\n' | sort)
}

look() { # DIR
    if [ ! -d "$1" ]; then
        echo absent
    elif [ ! -f "$1/$STAMP" ]; then
        echo "damaged: it has no list of its files"
    else
        changed=$(files_of "$1" | comm -3 - "$1/$STAMP" | tr -d '\t' | cut -d'|' -f4- | sort -u)
        count=$(printf '%s' "$changed" | grep -c '' || true)
        more=""
        [ "$count" -le 3 ] || more=" and $((count - 3)) more"
        if [ "$count" -eq 0 ]; then echo intact; else echo "damaged: $(echo "$changed" | head -n 3 | listed)$more"; fi
    fi
}

unpack() { # TARBALL FRESH
    rm -rf "$2"
    mkdir -p "$2"
    said=$(tar -xzf "$1" -C "$2" --no-same-owner 2>&1) && return
    rm -rf "$2"
    fail "the engine's tarball cannot be unpacked ($(echo "$said" | head -n 1))" \
        "make it with tar -czf as docs/engines.md says, then lock its size and sha256 anew"
}

laid_out() { # FRESH BINARY
    [ -f "$1/$2" ] && return
    elsewhere=$(cd "$1" && find . -type f -name "${2##*/}" -printf '%P\n' | sort | head -n 1)
    some=$(cd "$1" && find . -type f -printf '%P\n' | sort | head -n 8 | listed)
    rm -rf "$1"
    [ -z "$elsewhere" ] || fail "the engine has no $2; its ${2##*/} is $elsewhere" \
        "set artefact.binary to $elsewhere in presets/engines.yaml, or pack the folder that holds it: tar -C ${elsewhere%/*} -czf …"
    fail "the engine has no $2; there is ${some:-nothing in it}" \
        "pack the folder that holds llama-server and its libraries, as docs/engines.md says"
}

missing() { # BINARY ACCELERATOR: what it needs and this host lacks; backends for other devices may be incomplete
    folder=${1%/*}
    for file in "$1" "$folder"/libggml-cpu*.so* "$folder/libggml-$2".so*; do
        [ ! -f "$file" ] || (cd / && ldd "$file" 2>&1) || true
    done | sed -nE 's/^[[:space:]]*([^ ]+) => not found.*/\1/p; s/.*version `([^'\'']+)'\'' not found.*/\1/p' |
        grep -v '^libcuda\.so' | sort -u | listed # libcuda is the driver's
}

proven() { # FRESH BINARY ACCELERATOR
    chmod +x "$1/$2"
    lacks=$(missing "$1/$2" "$3")
    if [ -n "$lacks" ]; then
        rm -rf "$1"
        fail "the engine misses $lacks here" \
            "put the library beside ${2##*/} or install its package; where GLIBC or GLIBCXX is missed, compile on a system as old as this one"
    fi
    out=$(cd / && "$1/$2" --version 2>&1) || {
        code=$?
        last=$(printf '%s' "$out" | tail -n 3)
        fail "the engine does not run here (exit $code): $last" \
            "install the library it names, or choose another engine with llama_engine; exit 132 means a CPU without an instruction it needs"
    }
}

put() { # FRESH DIR BINARY ACCELERATOR
    laid_out "$1" "$3"
    proven "$1" "$3" "$4"
    files_of "$1" >"$1.list"
    mv "$1.list" "$1/$STAMP"
    rm -rf "$2"
    mv "$1" "$2"
}

# ---------------------------------------------------------------- compiling

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null || fail "$1 is not on this host, and the engine is compiled here" \
        "install $2, or choose another engine with llama_engine"
}

checkout() { # SOURCE REPOSITORY COMMIT
    mkdir -p "$1"
    # Nobody else works here: what a killed run locked is free.
    rm -f "$1"/.git/*.lock
    [ "$(git -C "$1" rev-parse --verify --quiet HEAD 2>/dev/null)" != "$3" ] || return 0
    git -C "$1" init --quiet
    try=1
    until said=$(GIT_TERMINAL_PROMPT=0 git -C "$1" -c http.lowSpeedLimit=1 -c http.lowSpeedTime=60 \
        fetch --depth 1 --no-tags -- "$2" "$3" 2>&1); do
        reason=$(printf '%s\n' "$said" | grep -E '^(fatal|error|remote):' | tail -n 1)
        case $said in
        *"not our ref"* | *"unadvertised object"* | *"t find remote ref"*)
            fail "commit $3 is not in $2" "correct the engine's commit in presets/engines.yaml; a mirror must allow fetching by commit (uploadpack.allowAnySHA1InWant)"
            ;;
        esac
        [ "$try" -lt 3 ] || fail "$2 does not give commit $3 ($reason)" \
            "check that this host reaches it, or name a mirror as artefact.mirror in presets/engines.yaml"
        sleep "$try"
        try=$((try + 1))
    done
    git -C "$1" -c advice.detachedHead=false checkout --quiet --force FETCH_HEAD
}

# Beside llama-server, as in an image: the toolkit's folder is not always where the loader looks.
link_cuda() { # FOLDER NVCC
    libraries=$(dirname "$(dirname "$(readlink -f "$2")")")
    major=$("$2" --version | sed -nE 's/.*release ([0-9]+)\..*/\1/p')
    for name in libcudart libcublas libcublasLt; do
        found=$(find -L "$libraries" -name "$name.so.$major" -print -quit 2>/dev/null)
        [ -z "$found" ] || ln -sfn "$found" "$1/$name.so.$major"
    done
}

build() { # DIR BINARY ACCELERATOR ARCHITECTURES REPOSITORY COMMIT [NVCC [CXX]]
    prefix=${1%/engines/*}
    work=$prefix/build/${1##*/} log=$prefix/log/build.log tools=$prefix/lib/build nvcc=${7-} cxx=${8-}
    need git git
    need cmake cmake
    need ninja ninja-build
    need c++ build-essential
    [ "$3" != cuda ] || [ -x "$nvcc" ] || fail "there is no nvcc on this host" "install the CUDA toolkit"
    mkdir -p "$work" "$prefix/log" "$prefix/cache"
    exec 9>"$prefix/build/lock"
    flock --nonblock 9 || {
        echo "another run compiles here: waiting for it" >&2
        flock 9
    }
    [ "$(look "$1")" != intact ] || return 0
    echo "$(date '+%F %T') $5 at $6" >"$log"
    # What CMake keeps of other compilers would be used on.
    [ "$(cat "$work/compilers" 2>/dev/null)" = "$nvcc $cxx" ] || rm -rf "$work/build"
    echo "$nvcc $cxx" >"$work/compilers"
    checkout "$work/source" "$5" "$6"
    rm -rf "$work/out" "$work/libraries"
    mkdir -p "$work/libraries"
    [ -z "$nvcc" ] || link_cuda "$work/libraries" "$nvcc"
    # The server that runs here comes first.
    BUILD_ON=host BUILD_DIR=$work/build LIBRARIES=$work/libraries GPUS=$tools/gpus.yaml NVCC=$nvcc HOST_CXX=$cxx \
        CCACHE_DIR=$prefix/cache/ccache CCACHE_MAXSIZE=5G ACCELERATOR=$3 CUDA_ARCHITECTURES=$4 FA_ALL_QUANTS=ON \
        JOBS=auto ENGINE_COMMIT=$6 SOURCE_DATE_EPOCH=$(git -C "$work/source" log -1 --format=%ct) \
        nice bash "$tools/build-engine.sh" "$work/source" "$work/out" >>"$log" 2>&1 9>&- || {
        said=$(grep -E '\. Fix: ' "$log" | tail -n 1)
        [ -z "$said" ] || {
            echo "$said ($log)" >&2
            exit 1
        }
        fail "the build ended without a word: $(tail -n 1 "$log")" "run again, it goes on where it was; $log has all of it"
    }
    find "$work/libraries" -mindepth 1 -exec mv -t "$work/out" {} +
    put "$work/out" "$1" "$2" "$3"
    rm -rf "$prefix"/build/*/ # also what other engines' failed builds left
}

command=${1-}
[ $# -eq 0 ] || shift
case $command in
look | unpack | put | build) "$command" "$@" ;;
*) fail "engine.sh knows no command '$command'" "use look, unpack, put or build" ;;
esac
