#!/usr/bin/env bash
# report-issue.sh TITLE BODY: opens an issue, or adds to the one of that title that is open. GH_TOKEN, GH_REPO: gh's own.
set -euo pipefail
[ $# = 2 ] && [ -n "$1" ] || {
  echo "a title and a body are wanted. Fix: report-issue.sh TITLE BODY" >&2
  exit 2
}
of_that_title='import json, sys; print(next((i["number"] for i in json.load(sys.stdin) if i["title"] == sys.argv[1]), ""))'
open=$(gh issue list --state open --limit 500 --json number,title | python3 -c "$of_that_title" "$1")
if [ -n "$open" ]; then
  gh issue comment "$open" --body "$2"
else
  gh issue create --title "$1" --body "$2"
fi
