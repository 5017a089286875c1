"""`make up`: deploy inventories/local.py, then show an answer. For people's first minute."""

import shutil
import subprocess
import sys
import time

from beeyard.catalog import CatalogError
from beeyard.cli import ask
from beeyard.spec import host_settings

DEPLOY = [sys.executable, "-m", "pyinfra"]
QUESTION = "Write this line three times: A bee visits every flower in the garden."


def main(options: list[str]) -> int:
    """Deploy with pyinfra's options (``--data KEY=VALUE``), ask the server one thing, and say what to do next."""
    began = time.monotonic()
    if shutil.which("nvidia-smi"):
        print("There is an NVIDIA card here. `up` serves a small model on the CPU all the same; docs/homelab.md")
        print("says how this very machine serves gemma-4-31b with DFlash.\n")
    run = subprocess.run([*DEPLOY, *options, "inventories/local.py", "deploy.py", "-y"], check=False)
    if run.returncode != 0:
        return run.returncode
    data = dict(pair.split("=", 1) for pair in options if "=" in pair)
    url = f"http://127.0.0.1:{host_settings({'llama_preset': '', **data}).port}"
    print()
    try:
        ask(QUESTION, url=url)
    except CatalogError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\nFrom `make up` to this answer: {time.monotonic() - began:.1f} s. The server goes on at {url}/v1.")
    print("Ask it: .venv/bin/beeyard ask 'your question' · stop it: make down · what else: make")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
