#!/bin/bash
# Whether the llama-server of this container is ready, asked on the port that its command line names.
port=${LLAMA_ARG_PORT:-8080} host=127.0.0.1
for comm in /proc/[0-9]*/comm; do
  read -r name <"$comm" 2>/dev/null && [ "$name" = llama-server ] || continue
  mapfile -d '' -t words <"${comm%comm}cmdline"
  for ((i = 1; i < ${#words[@]}; i++)); do
    case ${words[i - 1]} in
      --port) port=${words[i]} ;;
      --host) host=${words[i]} ;;
    esac
  done
done
case $host in 0.0.0.0 | ::) host=127.0.0.1 ;; esac
exec 3<>"/dev/tcp/$host/$port" || exit 1
printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r -t 3 _ status _ <&3
[ "$status" = 200 ]
