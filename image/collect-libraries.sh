#!/usr/bin/env bash
# collect-libraries.sh DIR: puts into DIR what llama-server needs beside itself and the server's base lacks.
#
# From the build's base, and not from packages of the server's: no package manager runs there, so the layer is the
# same whenever it is made, and a base for CUDA brings much that a llama-server never opens.
set -euo pipefail
out=$1
mkdir -p "$out"

soname() { # library: the file under the name that programs ask for
  local found
  found=$(ldconfig -p | awk -v name="$1" '$1 == name { print $NF; exit }')
  [ -n "$found" ] || found=$(find -L /usr/local/cuda/lib64 /usr/lib -name "$1" -print -quit 2>/dev/null)
  [ -n "$found" ] || {
    echo "$1 is not in the build's base. Fix: name a -devel image of CUDA as BUILD_BASE" >&2
    exit 1
  }
  install -m 0755 "$(readlink -f "$found")" "$out/$1"
}

soname libgomp.so.1
install -m 0755 /usr/bin/tini-static "$out/tini"
if [ "$ACCELERATOR" = cuda ]; then
  major=$(/usr/local/cuda/bin/nvcc --version | sed -nE 's/.*release ([0-9]+)\..*/\1/p')
  for library in libcudart libcublas libcublasLt; do soname "$library.so.$major"; done
fi
find "${out%/opt/llama}" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
