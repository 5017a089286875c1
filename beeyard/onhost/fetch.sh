#!/bin/sh
# fetch.sh get URL DEST SIZE SHA256     download (curl config, with a token or without, on stdin), verify, move
# fetch.sh keep FILE DEST SIZE SHA256   verify a file that is already here, move it into place
# fetch.sh look DEST SHA256             what DEST is: verified, unstamped or absent; costs a stat
#
# Runs on the host. DEST appears only once its size and hash are right. A broken download stays beside it as
# DEST.partial and resumes; two runs on one DEST wait for each other.
set -eu

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

size_of() {
    stat -c %s "$1" 2>/dev/null || echo 0
}

# What a later run compares instead of reading 20 GB: any change of the file changes its ctime.
fingerprint() {
    stat -c '%s %.9Y %.9Z %i %d' "$1"
}

digest_of() {
    if command -v openssl >/dev/null; then # four times as fast as sha256sum
        openssl dgst -sha256 -r "$1" | cut -c1-64
    else
        sha256sum "$1" | cut -c1-64
    fi
}

stamped() { # DEST SHA256
    [ -f "$1" ] && [ -f "$1.verified" ] && [ "$(cat "$1.verified")" = "$2 $(fingerprint "$1")" ]
}

# Moves $1 to $2 if it is what it must be. Returns 1 if it is too short and may go on growing.
keep() { # FILE DEST SIZE SHA256
    have=$(size_of "$1")
    if [ "$have" -ne "$3" ] || [ "$(digest_of "$1")" != "$4" ]; then
        start=$(head -c 15 "$1" | tr -cd '[:print:]')
        case $start in
        '<'*) what="a web page, it starts with '$start'" ;;
        *) what="$have bytes with another content" ;;
        esac
        if [ "$have" -lt "$3" ] && [ "${start#<}" = "$start" ]; then
            return 1
        fi
        if [ "$1" = "$2" ]; then
            mv -f "$1" "$2.wrong-sha256"
            echo "$2 was not what the lock names; it is kept as $2.wrong-sha256" >&2
            return 1
        fi
        rm -f "$1"
        fail "$2: what was fetched is $what; $3 bytes with sha256 $4 are wanted. It was dropped. Fix: check the source and presets/lock.yaml"
    fi
    [ "$1" = "$2" ] || mv -f "$1" "$2"
    printf '%s %s' "$4" "$(fingerprint "$2")" >"$2.verified"
}

alone() { # DEST
    mkdir -p "$(dirname "$1")"
    exec 9>"$1.lock"
    if ! flock --nonblock 9; then
        echo "another run is fetching $1: waiting for it" >&2
        flock 9
    fi
}

get() { # URL DEST SIZE SHA256
    url=$1 dest=$2 size=$3 sha256=$4 partial=$2.partial
    config=$(cat)
    alone "$dest"
    if stamped "$dest" "$sha256"; then return; fi
    if [ -f "$dest" ] && keep "$dest" "$dest" "$size" "$sha256"; then return; fi
    if [ "$(size_of "$partial")" -gt "$size" ]; then rm -f "$partial"; fi
    tries=0
    while [ "$(size_of "$partial")" -lt "$size" ]; do
        tries=$((tries + 1))
        before=$(size_of "$partial")
        code=0
        # A stalled connection (no byte for 60 s) is given up and resumed.
        status=$(printf '%s\n' "$config" | curl --config - --fail --silent --show-error --location \
            --connect-timeout 20 --speed-limit 1 --speed-time 60 --continue-at - \
            --output "$partial" --write-out '%{http_code}' --url "$url") || code=$?
        if [ "$code" -eq 0 ]; then break; fi
        case $code/$status in
        22/401) fail "$url answers 401: it wants a token, or does not exist. Fix: set HF_TOKEN, or correct the preset" ;;
        22/403) fail "$url answers 403: access is not granted. Fix: accept the model's licence with the token's account" ;;
        22/404) fail "$url answers 404: there is no such file. Fix: correct the preset, then lock it anew" ;;
        33/* | 22/416) rm -f "$partial" ;; # the server cannot resume: from the start
        esac
        if [ "$(size_of "$partial")" -gt "$before" ]; then tries=1; fi
        if [ "$tries" -ge 5 ]; then
            fail "$url: download broke off (curl $code, HTTP $status): have $(size_of "$partial") of $size bytes. Fix: run again, it resumes"
        fi
        sleep "$tries"
    done
    keep "$partial" "$dest" "$size" "$sha256" ||
        fail "$url: ended early: have $(size_of "$partial") of $size bytes. Fix: run again, it resumes"
}

case ${1-} in
get) get "$2" "$3" "$4" "$5" ;;
keep)
    alone "$3"
    if stamped "$3" "$5"; then exit; fi
    keep "$2" "$3" "$4" "$5" || {
        rm -f "$2"
        fail "$3: $2 is shorter than the $4 bytes wanted. It was dropped. Fix: check the source and presets/lock.yaml"
    }
    ;;
look)
    if stamped "$2" "$3"; then echo verified; elif [ -f "$2" ]; then echo unstamped; else echo absent; fi
    ;;
*) fail "usage: fetch.sh get|keep|look …" ;;
esac
