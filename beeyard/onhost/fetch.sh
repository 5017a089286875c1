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
# with pauses of a multiple of FETCH_PAUSE seconds, are the end; thrice as many once something came, so that a router
# may start anew.
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

# What a later run compares instead of reading 20 GB: any change of the file, and any other file put in its place,
# has another ctime. Devices and inodes are not compared: some file systems number them anew at each mount.
fingerprint() {
    stat -c '%s %.9Y %.9Z' "$1"
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

# Whether a file that is not what it must be begins as a web page does; no model does.
is_page() {
    [ "$(head -c 1 "$1" 2>/dev/null | tr -d '\0')" = '<' ]
}

# Moves $1 to $2 if it is what it must be. Returns 1 if it is too short and may go on growing, 2 if it is something else
# and was put aside, 3 if it was a web page, which is dropped.
keep() { # FILE DEST SIZE SHA256
    have=$(size_of "$1")
    if [ "$have" -ne "$3" ] || [ "$(digest_of "$1")" != "$4" ]; then
        if is_page "$1"; then rm -f "$1" && return 3; fi
        [ "$have" -ge "$3" ] || return 1
        mv -f "$1" "$2.wrong-sha256"
        echo "$2: $have bytes came with another content than the lock names; they are kept as $2.wrong-sha256" >&2
        return 2
    fi
    # The stamp must not outlive what it stands for, should the power fail now.
    sync "$1" 2>/dev/null || :
    [ "$1" = "$2" ] || mv -f "$1" "$2" || fail "$2 cannot be written. Fix: see who may write into that directory"
    # Whoever put it here may have kept it to himself; the server is another user.
    chmod a+r "$2"
    printf '%s %s' "$4" "$(fingerprint "$2")" >"$2.verified"
    rm -f "$2.wrong-sha256"
}

refuse_page() { # DEST
    fail "$1: what came is a web page. It was dropped. Fix: check the address, and whether a proxy or a login stands between"
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

# A line of progress now and then, until the run ends, however it does.
report() { # PARTIAL SIZE NAME
    before=$(size_of "$1") since=$(date +%s)
    while sleep "$FETCH_EVERY" && kill -0 $$ 2>/dev/null; do
        have=0
        for file in "$1" "$1".[0-9]*; do have=$((have + $(size_of "$file"))); done
        seconds=$(($(date +%s) - since))
        rate=$(((have - before) / (seconds > 0 ? seconds : 1)))
        left=unknown
        [ "$rate" -eq 0 ] || left="$((($2 - have) / rate / 60)) min $((($2 - have) / rate % 60)) s"
        echo "$3: $((have / 1000000)) of $(($2 / 1000000)) MB, $((rate / 1000000)) MB/s, $left left" >>"$FETCH_LOG"
    done
}

# One request. Sets result to "curl's exit code/HTTP status/redirects/type".
ask() { # OUTPUT LIMIT OPTION VALUE
    code=0 result=23/000/0/
    true 2>/dev/null >"$partial.said" || return 0 # the disk is full
    # shellcheck disable=SC2086 # $more is words
    said=$(printf '%s\n' "$config" | curl --config - --fail --silent --show-error --location $more \
        --connect-timeout 20 --speed-limit 1 --speed-time "$FETCH_STALL" --max-filesize "$2" "$3" "$4" \
        --output "$1" --write-out '%{http_code}/%{num_redirects}/%{content_type}' --url "$url" 2>"$partial.said") || code=$?
    result=$code/${said%%[; ]*}
}

status_of() { # a result
    echo "$1" | cut -d/ -f2
}

# Sets piece and end for the one that begins at $1: they end on multiples of FETCH_PIECE, wherever a run broke off.
piece_at() { # OFFSET
    piece=$partial.$1 end=$((($1 / FETCH_PIECE + 1) * FETCH_PIECE))
    [ "$end" -le "$size" ] || end=$size
}

# Fetches its share of the pieces, of FETCH_CONNECTIONS the N-th, and says where each begins that it has done. Ends with
# the first that did not come, or when nobody listens any more.
share() { # N
    offset=$before
    [ "$1" -eq 0 ] || offset=$(((before / FETCH_PIECE + $1) * FETCH_PIECE))
    while [ "$offset" -lt "$size" ]; do
        piece_at "$offset"
        result=0/206/0/ # of an earlier run's
        if [ "$(size_of "$piece")" -ne $((end - offset)) ]; then
            rm -f "$piece"
            ask "$piece" $((end - offset)) --range "$offset-$((end - 1))"
            case $result in
            0/206/*) [ "$(size_of "$piece")" -eq $((end - offset)) ] || result=18/206/0/ ;;
            0/*) result=63/${result#*/} ;; # a whole file in place of a piece
            esac
        fi
        echo "$offset $result" 2>/dev/null || break
        [ "${result%%/*}" = 0 ] || break
        offset=$(((offset / FETCH_PIECE + FETCH_CONNECTIONS) * FETCH_PIECE))
    done
}

# Fetches pieces at the same time, and appends what came of them in order: the partial file is always the start of the
# whole. Ends with the last piece, or the first in order that did not come.
pieces() {
    if ! { pipe=$(mktemp -d) && mkfifo "$pipe/told"; } 2>/dev/null; then rest; return; fi
    # Opened both ways first, so that neither end waits for the other.
    # shellcheck disable=SC2094
    exec 6<>"$pipe/told" 7<"$pipe/told" 8>"$pipe/told" 6>&-
    rm -rf "$pipe"
    children='' number=0
    while [ "$number" -lt "$FETCH_CONNECTIONS" ]; do
        share "$number" >&8 7<&- 8>&- &
        children="$children $!" number=$((number + 1))
    done
    exec 8>&-
    offset=$before told=' ' outcome=0/206/0/
    while [ "$offset" -lt "$size" ] && [ "${outcome%%/*}" = 0 ]; do
        piece_at "$offset"
        while :; do
            case $told in *" $offset "*) break ;; esac
            read -r line <&7 || { told="$told$offset 23/000/0/ " && break; } # nobody is left to say it
            told="$told$line "
        done
        outcome=${told#*" $offset "} outcome=${outcome%% *}
        case $outcome in
        23/* | 63/*) rm -f "$piece" ;;
        */206/*) # of one that broke off, too, what came is the start
            if [ -f "$piece" ] && ! cat "$piece" >>"$partial" 2>/dev/null; then
                outcome=23/000/0/ # the piece stays for the next run
            else
                rm -f "$piece"
            fi
            ;;
        *) rm -f "$piece" ;;
        esac
        offset=$end
    done
    exec 7<&-
    for child in $children; do wait "$child" || :; done
    children=''
}

# Fetches all that is missing over one connection.
rest() {
    ask "$partial" "$size" --continue-at -
    outcome=$result
    case $outcome in
    */text/html*) ;;
    33/* | 36/* | 22/416/* | 63/*) # it cannot go on from here
        refusals=$((refusals + 1))
        # Once may be a proxy's whim, for which nobody wants to fetch 20 GB again.
        if [ "$refusals" -ge 2 ]; then
            restarts=$((restarts + 1))
            [ "$restarts" -le 3 ] || fail "$url: its server has another file, or cannot go on from byte $(size_of "$partial") of $size (HTTP $(status_of "$outcome")). Fix: check the source and presets/lock.yaml (beeyard lock --check)"
            rm -f "$partial"
        fi
        ;;
    esac
}

transfer() {
    tries=0 refusals=0 restarts=0 more='' connections=$FETCH_CONNECTIONS patience=$FETCH_TRIES
    while [ "$(size_of "$partial")" -lt "$size" ]; do
        before=$(size_of "$partial")
        if [ "$connections" -gt 1 ] && [ $((size - before)) -gt "$FETCH_PIECE" ]; then pieces; else rest; fi
        case $outcome in
        */200/*/text/html*)
            [ "$before" -gt 0 ] || rm -f "$partial"
            fail "$url answers with a web page. Fix: check the address, and whether a proxy or a login stands between"
            ;;
        22/401/0/*) fail "$url answers 401: it wants a token, or does not exist. Fix: set HF_TOKEN, or correct the preset" ;;
        22/403/0/*) fail "$url answers 403: access is not granted. Fix: accept the model's licence with the token's account" ;;
        22/404/0/*) fail "$url answers 404: there is no such file. Fix: correct the preset, then lock it anew" ;;
        23/*) fail "$dest cannot be written on: $(free_mb) MB are free, $(((size - $(size_of "$partial")) / 1000000)) MB are still to come. Fix: free some (make prune shows models that nothing names), or set llama_models_dir; it resumes" ;;
        63/*) connections=1 ;; # it gives no ranges, or another file
        esac
        # A refusal from where the address led on to is one that ran out: the next try asks for a new one. What only
        # broke off, with something to show for it, goes on at once.
        if [ "$(size_of "$partial")" -gt "$before" ]; then
            tries=0 refusals=0 patience=$((3 * FETCH_TRIES))
            continue
        fi
        tries=$((tries + 1))
        if [ "$tries" -ge "$patience" ]; then
            fail "$url: download broke off (curl ${outcome%%/*}, HTTP $(status_of "$outcome")$(sed -n '1s/^curl: ([0-9]*) */: /p' "$partial.said" 2>/dev/null)): have $(size_of "$partial") of $size bytes. Fix: run again, it resumes"
        fi
        case $outcome in
        5/* | 6/* | 7/* | 28/000/*) ;; # nobody is there
        *) # Some proxies break what they do not know: the plainest way for the last tries.
            if [ "$tries" -ge 3 ]; then more=--http1.1 connections=1; fi
            ;;
        esac
        if [ "$tries" -eq $((patience - 1)) ]; then more='--http1.1 --ipv4'; fi
        case $outcome in 22/429/*) sleep $((tries * FETCH_PAUSE * 10)) ;; *) sleep $((tries * FETCH_PAUSE)) ;; esac
    done
}

free_mb() {
    echo $(($(df -Pk "$(dirname "$dest")" | awk 'END { print $4 }') / 1000))
}

clean() {
    # shellcheck disable=SC2086 # words
    kill ${reporter:-} ${children:-} 2>/dev/null || :
    rm -f "$partial.said"
}

get() { # URL DEST SIZE SHA256
    url=$1 dest=$2 size=$3 sha256=$4 partial=$2.partial
    config=$(cat)
    alone "$dest"
    if stamped "$dest" "$sha256"; then return; fi
    if [ -f "$dest" ]; then
        result=0
        keep "$dest" "$dest" "$size" "$sha256" || result=$?
        case $result in
        0) return ;;
        1) # Cut short since it was verified. Nothing wrong stays in its place, whatever becomes of the download.
            if [ "$have" -gt "$(size_of "$partial")" ]; then mv -f "$dest" "$partial"; else rm -f "$dest"; fi
            ;;
        esac
    fi
    if [ "$(size_of "$partial")" -gt "$size" ] || is_page "$partial"; then rm -f "$partial"; fi
    for piece in "$partial".[0-9]*; do # what an earlier run was killed over
        offset=${piece##*.}
        case $offset in *[!0-9]*) ;; *) [ "$offset" -ge "$(size_of "$partial")" ] || rm -f "$piece" ;; esac
    done
    trap clean EXIT
    trap 'exit 143' TERM
    trap 'exit 130' INT
    trap 'exit 129' HUP
    if [ -d "$(dirname "$FETCH_LOG")" ]; then
        echo "$(basename "$dest"): $((size / 1000000)) MB from ${url%%\?*}" >"$FETCH_LOG"
        report "$partial" "$size" "$(basename "$dest")" 9>&- >/dev/null 2>&1 &
        reporter=$!
    fi
    for round in first second; do
        transfer
        result=0
        keep "$partial" "$dest" "$size" "$sha256" || result=$?
        case $result in
        0) rm -f "$partial".* && return ;;
        1) fail "$url: ended early: have $(size_of "$partial") of $size bytes. Fix: run again, it resumes" ;;
        3) refuse_page "$dest" ;;
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
    3) refuse_page "$3" ;;
    2) fail "$3: $2 is not what the lock names, $4 bytes with sha256 $5. Fix: check the source and presets/lock.yaml" ;;
    esac
    ;;
look)
    if stamped "$2" "$3"; then echo verified; elif [ -f "$2" ]; then echo unstamped; else echo absent; fi
    ;;
*) fail "usage: fetch.sh get|keep|look …" ;;
esac
