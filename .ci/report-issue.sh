#!/usr/bin/env bash
# report-issue.sh TITLE BODY: opens an issue, or adds to the one of that title that is open. GH_TOKEN, GH_REPO: gh's own.
set -euo pipefail
[ $# = 2 ] && [ -n "$1" ] || {
  echo "a title and a body are wanted. Fix: report-issue.sh TITLE BODY" >&2
  exit 2
}
open=$(gh issue list --state open --limit 500 --json number,title |
  jq --raw-output --arg title "$1" 'map(select(.title == $title).number)[0] // empty')
if [ -n "$open" ]; then
  gh issue comment "$open" --body "$2"
else
  gh issue create --title "$1" --body "$2"
fi
