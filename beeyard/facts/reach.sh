# shellcheck shell=sh
# Who takes a connection from here: lines reach=STATUS CONNECTIONS PROXY ADDRESS, for machine_lines.py. Changes nothing.
#
# Arguments: [ADDRESS URL NAME PORT WAY]…
#   WAY   env: as curl goes, by the proxies of its environment and .curlrc; git: by git's proxy, if it has one;
#         direct: by none, as a Docker Engine goes that was told of none

within() { # SECONDS COMMAND…
    if command -v timeout >/dev/null; then timeout -k 1 "$@"; else
        shift
        "$@"
    fi
}

proxies() { # URL WAY: curl's configuration, which no list of processes shows
    case $2 in
    direct) echo 'noproxy = "*"' ;;
    git)
        proxy=$(git config --get-urlmatch http.proxy "$1" 2>/dev/null)
        [ -z "$proxy" ] || printf 'proxy = "%s"\n' "$proxy"
        ;;
    esac
}

ask() { # URL NAME PORT WAY: sets status and said
    status=0
    if command -v curl >/dev/null; then
        said=$(proxies "$1" "$4" | within 5 curl --config - --silent --head --output /dev/null --connect-timeout 4 \
            --max-time 4 --write-out '%{num_connects} %{http_connect}' "$1") || status=$?
    else
        said='- -'
        connect='import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4)'
        within 5 python3 -c "$connect" "$2" "$3" || status=$?
    fi
}

reach() { # ADDRESS URL NAME PORT WAY: a second time where nobody was there, as a name server has its moments
    ask "$2" "$3" "$4" "$5"
    if [ "$status" -ne 0 ]; then
        case $said in
        '0 '* | '- -' | '')
            sleep 0.5
            ask "$2" "$3" "$4" "$5"
            ;;
        esac
    fi
    printf 'reach=%s %s %s\n' "$status" "${said:-- -}" "$1"
}

export LC_ALL=C
echo done= # pyinfra takes no output for no answer
if ! command -v curl >/dev/null; then
    # Without curl it is not known which proxy would be asked, and without Python nothing can ask.
    command -v python3 >/dev/null || exit 0
    for proxy in "${http_proxy-}" "${https_proxy-}" "${HTTPS_PROXY-}" "${all_proxy-}" "${ALL_PROXY-}"; do
        [ -z "$proxy" ] || exit 0
    done
fi
while [ $# -ge 5 ]; do
    reach "$1" "$2" "$3" "$4" "$5" 2>/dev/null </dev/null &
    shift 5
done
wait
exit 0
