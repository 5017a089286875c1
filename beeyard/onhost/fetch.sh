#!/bin/sh
# fetch.sh get URL DEST SIZE SHA256     download (curl config, with a token or without, on stdin), verify, move
# fetch.sh keep FILE DEST SIZE SHA256   verify a file that is already here, move it into place
# fetch.sh look DEST SHA256             what DEST is: verified, unstamped or absent; costs a stat
#
# Runs on the host. DEST appears only once its size and hash are right. A broken download stays beside it as
# DEST.partial and resumes; two runs on one DEST wait for each other. What has the wrong hash is kept once, as
# DEST.wrong-sha256, and downloaded once more.
#
# FETCH_LOG: where a line of progress goes every FETCH_EVERY seconds. FETCH_CONNECTIONS at once, for pieces of
# FETCH_PIECE bytes; one is given up after FETCH_STALL seconds without a byte. FETCH_TRIES without a byte of progress,
# with pauses of a multiple of FETCH_PAUSE seconds, are the end.
set -eu

: "${FETCH_LOG:=$(dirname "$0")/../log/fetch.log}" "${FETCH_EVERY:=5}" "${FETCH_CONNECTIONS:=4}"
: "${FETCH_PIECE:=67108864}" "${FETCH_STALL:=60}" "${FETCH_TRIES:=5}" "${FETCH_PAUSE:=1}"

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

# Moves $1 to $2 if it is what it must be. Returns 1 if it is too short and may go on growing, 2 if it is something else
# and was put aside.
keep() { # FILE DEST SIZE SHA256
    have=$(size_of "$1")
    if [ "$have" -ne "$3" ] || [ "$(digest_of "$1")" != "$4" ]; then
        start=$(head -c 15 "$1" | tr -cd '[:print:]')
        case $start in
        '<'*)
            rm -f "$1"
            fail "$2: what was fetched is a web page, it starts with '$start'. It was dropped. Fix: check the address, and whether a proxy or a login stands between"
            ;;
        esac
        [ "$have" -ge "$3" ] || return 1
        mv -f "$1" "$2.wrong-sha256"
        echo "$2: $have bytes came with another content than the lock names; they are kept as $2.wrong-sha256" >&2
        return 2
    fi
    [ "$1" = "$2" ] || mv -f "$1" "$2"
    # Whoever put it here may have kept it to himself; the server is another user.
    chmod a+r "$2"
    printf '%s %s' "$4" "$(fingerprint "$2")" >"$2.verified"
    rm -f "$2.wrong-sha256"
}

alone() { # DEST
    mkdir -p "$(dirname "$1")"
    exec 9>"$1.lock"
    if ! flock --nonblock 9; then
        echo "another run is fetching $1: waiting for it" >&2
        flock 9
    fi
}

# --- the transfer ------------------------------------------------------------------------------------------------

# A line of progress now and then, until the run ends.
report() { # PARTIAL SIZE NAME
    before=$(size_of "$1") since=$(date +%s)
    while sleep "$FETCH_EVERY"; do
        have=0
        for file in "$1" "$1".[0-9]*; do have=$((have + $(size_of "$file"))); done
        seconds=$(($(date +%s) - since))
        rate=$(((have - before) / (seconds > 0 ? seconds : 1)))
        left=unknown
        [ "$rate" -eq 0 ] || left="$((($2 - have) / rate / 60)) min $((($2 - have) / rate % 60)) s"
        echo "$3: $((have / 1000000)) of $(($2 / 1000000)) MB, $((rate / 1000000)) MB/s, $left left" >>"$FETCH_LOG"
    done
}

# One request. Leaves "curl's exit code/HTTP status/redirects/type" in RESULT.
ask() { # OUTPUT LIMIT OPTION VALUE RESULT
    code=0
    # shellcheck disable=SC2086 # $more is words
    said=$(printf '%s\n' "$config" | curl --config - --fail --silent --show-error --location $more \
        --connect-timeout 20 --speed-limit 1 --speed-time "$FETCH_STALL" --max-filesize "$2" "$3" "$4" \
        --output "$1" --write-out '%{http_code}/%{num_redirects}/%{content_type}' --url "$url" 2>"$partial.said") || code=$?
    echo "$code/$said" >"$5"
}

status_of() { # a result
    echo "$1" | cut -d/ -f2
}

# Fetches the next pieces at the same time, and appends those that are whole and next in order.
pieces() {
    at=$(size_of "$partial")
    offset=$at count=0 children=''
    while [ "$offset" -lt "$size" ] && [ "$count" -lt "$FETCH_CONNECTIONS" ]; do
        end=$((offset + FETCH_PIECE))
        [ "$end" -le "$size" ] || end=$size
        if [ "$(size_of "$partial.$offset")" -lt $((end - offset)) ]; then
            rm -f "$partial.$offset"
            ask "$partial.$offset" $((end - offset)) --range "$offset-$((end - 1))" "$partial.$offset.result" &
            children="$children $!"
        else
            echo 0/206/0/ >"$partial.$offset.result"
        fi
        offset=$end count=$((count + 1))
    done
    for child in $children; do wait "$child" || :; done
    children=''
    outcome=0/206/0/
    for offset in $(seq "$at" "$FETCH_PIECE" $((offset - 1))); do
        end=$((offset + FETCH_PIECE))
        [ "$end" -le "$size" ] || end=$size
        result=$(cat "$partial.$offset.result")
        rm -f "$partial.$offset.result"
        # Only what answers a range is a piece; a whole file in its place is refused by its length.
        case $result in
        0/206/*) [ "$(size_of "$partial.$offset")" -eq $((end - offset)) ] || result=18/206/0/ ;;
        0/*) result=63/${result#*/} ;;
        esac
        case $result in
        0/206/*)
            # In order: the partial file is always the start of the whole.
            if [ "${outcome%%/*}" = 0 ]; then
                cat "$partial.$offset" >>"$partial"
                rm -f "$partial.$offset"
            fi
            ;;
        *)
            rm -f "$partial.$offset"
            [ "${outcome%%/*}" != 0 ] || outcome=$result
            ;;
        esac
    done
}

# Fetches all that is missing over one connection.
rest() {
    ask "$partial" "$size" --continue-at - "$partial.result"
    outcome=$(cat "$partial.result")
    rm -f "$partial.result"
    # It cannot go on from here: from the start.
    case $outcome in
    33/* | 36/* | 22/416/* | 63/*)
        restarts=$((restarts + 1))
        [ "$restarts" -le 3 ] || fail "$url: its server has another file, or cannot go on from byte $(size_of "$partial") of $size (HTTP $(status_of "$outcome")). Fix: check the source and presets/lock.yaml (beeyard lock --check)"
        rm -f "$partial"
        ;;
    esac
}

transfer() {
    tries=0 restarts=0 more='' connections=$FETCH_CONNECTIONS
    while [ "$(size_of "$partial")" -lt "$size" ]; do
        before=$(size_of "$partial")
        if [ "$connections" -gt 1 ] && [ $((size - before)) -gt "$FETCH_PIECE" ]; then pieces; else rest; fi
        case $outcome in
        */200/*/text/html*)
            [ "$before" -gt 0 ] || rm -f "$partial"
            fail "$url answers with a web page. Fix: check the address, and whether a proxy or a login stands between"
            ;;
        0/*) [ "$(size_of "$partial")" -gt "$before" ] && tries=0 && continue ;;
        22/401/*) fail "$url answers 401: it wants a token, or does not exist. Fix: set HF_TOKEN, or correct the preset" ;;
        22/403/0/*) fail "$url answers 403: access is not granted. Fix: accept the model's licence with the token's account" ;;
        22/404/0/*) fail "$url answers 404: there is no such file. Fix: correct the preset, then lock it anew" ;;
        63/*) connections=1 ;; # it gives no ranges, or another file
        esac
        # A refusal from where the address led on to is one that ran out: the next try asks for a new one.
        if [ "$(size_of "$partial")" -gt "$before" ]; then tries=0; fi
        tries=$((tries + 1))
        if [ "$tries" -ge "$FETCH_TRIES" ]; then
            fail "$url: download broke off (curl ${outcome%%/*}, HTTP $(status_of "$outcome")$(sed -n '1s/^curl: ([0-9]*) */: /p' "$partial.said" 2>/dev/null)): have $(size_of "$partial") of $size bytes. Fix: run again, it resumes"
        fi
        # Some proxies break what they do not know: the plainest way for the last tries.
        if [ "$tries" -ge 3 ]; then more='--http1.1 --ipv4' connections=1; fi
        case $outcome in 22/429/*) sleep $((tries * FETCH_PAUSE * 10)) ;; *) sleep $((tries * FETCH_PAUSE)) ;; esac
    done
}

clean() {
    # shellcheck disable=SC2086 # words
    kill ${reporter:-} ${children:-} 2>/dev/null || :
    rm -f "$partial.said" "$partial".*result
}

get() { # URL DEST SIZE SHA256
    url=$1 dest=$2 size=$3 sha256=$4 partial=$2.partial
    config=$(cat)
    alone "$dest"
    if stamped "$dest" "$sha256"; then return; fi
    if [ -f "$dest" ] && keep "$dest" "$dest" "$size" "$sha256"; then return; fi
    if [ "$(size_of "$partial")" -gt "$size" ]; then rm -f "$partial"; fi
    trap clean EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    if [ -d "$(dirname "$FETCH_LOG")" ]; then
        echo "$(basename "$dest"): $((size / 1000000)) MB from ${url%%\?*}" >"$FETCH_LOG"
        report "$partial" "$size" "$(basename "$dest")" 9>&- &
        reporter=$!
    fi
    for round in first second; do
        transfer
        result=0
        keep "$partial" "$dest" "$size" "$sha256" || result=$?
        case $result in
        0) rm -f "$partial".[0-9]* && return ;;
        1) fail "$url: ended early: have $(size_of "$partial") of $size bytes. Fix: run again, it resumes" ;;
        esac
        [ "$round" = second ] || echo "downloading $(basename "$dest") once more" >&2
    done
    fail "$dest: twice what was fetched has $(size_of "$dest.wrong-sha256") bytes with another content; $size bytes with sha256 $sha256 are wanted. Fix: check the source and presets/lock.yaml (beeyard lock --check), or the network between"
}

case ${1-} in
get) get "$2" "$3" "$4" "$5" ;;
keep)
    alone "$3"
    if stamped "$3" "$5"; then exit; fi
    result=0
    keep "$2" "$3" "$4" "$5" || result=$?
    case $result in
    1) rm -f "$2" && fail "$3: $2 is shorter than the $4 bytes wanted. It was dropped. Fix: check the source and presets/lock.yaml" ;;
    2) fail "$3: $2 is not what the lock names, $4 bytes with sha256 $5. Fix: check the source and presets/lock.yaml" ;;
    esac
    ;;
look)
    if stamped "$2" "$3"; then echo verified; elif [ -f "$2" ]; then echo unstamped; else echo absent; fi
    ;;
*) fail "usage: fetch.sh get|keep|look …" ;;
esac
