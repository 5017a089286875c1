"""`make idempotent`: a second deploy changes nothing, by pyinfra's own count."""

import json
import subprocess
import sys

DRIFT = 6


def main(arguments: list[str]) -> int:
    """Deploy with these pyinfra arguments and look at the totals; 6 if anything changed."""
    command = [sys.executable, "-m", "pyinfra", *arguments, "deploy.py", "--yes", "--json"]
    run = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        return run.returncode
    totals = json.loads(run.stdout)["results"]["totals"]
    print(f"{totals['success']} operations changed something, {totals['no_change']} changed nothing")
    return DRIFT if totals["success"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
