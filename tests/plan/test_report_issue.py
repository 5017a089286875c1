""".ci/report-issue.sh, with a gh that only notes what it is asked."""

import os
import subprocess
from pathlib import Path

from beeyard.catalog import PROJECT

OPEN = '[{"number": 3, "title": "Another"}, {"number": 7, "title": "An engine\'s newest commit"}]'


def report(tmp_path: Path, *words: str) -> tuple[int, str]:
    gh = tmp_path / "gh"
    gh.write_text(f"""#!/bin/sh
if [ "$2" = list ]; then cat <<'OPEN'
{OPEN}
OPEN
else echo "$*" >>{tmp_path}/asked; fi
""")
    gh.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run([PROJECT / ".ci" / "report-issue.sh", *words], check=False, env=env, capture_output=True)
    asked = tmp_path / "asked"
    return run.returncode, asked.read_text() if asked.exists() else ""


def test_an_issue_that_is_open_gets_a_comment(tmp_path: Path) -> None:
    assert report(tmp_path, "An engine's newest commit", "look") == (0, "issue comment 7 --body look\n")


def test_else_one_is_opened(tmp_path: Path) -> None:
    assert report(tmp_path, "A title", "look") == (0, "issue create --title A title --body look\n")


def test_without_a_title_nothing_is_opened(tmp_path: Path) -> None:
    assert report(tmp_path, "", "look") == (2, "")
