"""Who may import whom. The pure layers stay free of pyinfra, so that benchmarks and tests start fast."""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "beeyard"
PURE = {
    "drivers",
    "catalog",
    "contract",
    "images",
    "spec",
    "dialects",
    "render",
    "dashboard",
    "carried",
    "gguf_header",
    "lockfile",
    "hub",
    "tiny",
    "machine",
    "machine_lines",
    "nvidia_smi",
    "budget",
    "checks",
    "probes",
    "preflight",
    "solution",
    "sizing",
    "solve",
    "survey",
    "plan",
    "disk",
    "downloads",
    "bench",
    "measured",
    "keys",
    "trust",
    "tunnel",
    "space",
    "gateway",
    "front",
    "monitor",
    "certificates",
    "firewall",
    "examination",
    "status",
    "exporting",
    "doctor",
    "bundle",
    "logs",
}
ALLOWED = {
    "catalog": set[str](),
    "contract": set[str](),
    "tiny": set[str](),
    "carried": set[str](),
    "gguf_header": {"catalog"},
    "lockfile": {"catalog", "gguf_header"},
    "hub": {"catalog", "gguf_header"},
    "images": {"catalog"},
    "machine": {"catalog"},
    "nvidia_smi": {"machine"},
    "machine_lines": {"machine", "nvidia_smi"},
    "budget": {"catalog"},
    "probes": set[str](),
    "drivers": {"probes"},
    "preflight": {"catalog", "checks", "contract", "dialects", "machine", "probes", "spec"},
    "checks": {"catalog", "images", "machine", "spec"},
    "solution": {"catalog", "spec"},
    "sizing": {"budget", "catalog", "machine", "solution", "spec"},
    "solve": {"catalog", "checks", "dialects", "machine", "sizing", "solution", "spec"},
    "tunnel": {"catalog"},
    "disk": {"catalog", "machine", "spec"},
    "downloads": {"catalog", "hub", "images", "machine", "spec"},
    "survey": {
        "catalog",
        "disk",
        "downloads",
        "drivers",
        "images",
        "machine",
        "preflight",
        "probes",
        "sizing",
        "solution",
        "solve",
        "spec",
        "tunnel",
    },
    "hosts": {"catalog", "examination", "survey"},
    "examination": {"catalog", "contract", "render", "solution", "survey"},
    "status": {"catalog", "examination", "machine", "survey"},
    "exporting": {"catalog", "dialects", "images", "render", "spec"},
    "doctor": {"catalog", "checks", "examination", "survey"},
    "bundle": {"catalog", "dialects", "doctor", "examination", "survey"},
    "logs": {"catalog", "examination", "spec"},
    "drifting": {"catalog", "examination", "hosts", "render"},
    "space": {"catalog", "contract", "spec"},
    "keys": {"catalog", "spec"},
    "certificates": {"catalog", "keys"},
    "firewall": {"catalog"},
    "gateway": {"catalog", "render", "spec", "tunnel"},
    "trust": {"keys"},
    "monitor": {"catalog", "gateway", "render", "spec", "tunnel"},
    "front": {"gateway", "render", "spec"},
    "tuning": {"bench", "catalog", "comparing", "contract", "hosts", "measured", "space", "spec", "survey"},
    "comparing": {"bench", "catalog", "hosts", "measured", "render", "survey"},
    "plan": {"solution"},
    "measured": {"bench", "catalog", "dialects", "keys", "machine", "spec", "survey", "tunnel"},
    "bench": {"bench", "catalog", "contract", "dialects", "machine", "nvidia_smi", "spec", "trust"},
    "spec": {"catalog", "images"},
    "dialects": {"catalog", "contract", "spec"},
    "render": {"catalog", "dashboard", "dialects", "hub", "images", "spec"},
    "dashboard": set[str](),
    "forge": {"catalog"},
    "locking": {"catalog", "forge", "hub", "lockfile", "spec"},
    "docker_here": {"catalog"},
    "image_build": {"catalog", "contract", "images", "render"},
    "newest": {"catalog", "contract", "dialects", "spec"},
    "clouds": {"catalog", "checks", "clouds", "images", "machine", "solution", "solve", "spec"},
    "commands": {*PURE, "clouds", "commands", "comparing", "drifting", "hosts", "locking", "tuning"},
    "cli": PURE | {"clouds", "commands", "locking", "image_build", "newest", "hosts"},
    "up": PURE | {"cli"},
    "idempotent": PURE,
    "onhost": {"onhost"},
    "facts": {"facts", "onhost", "machine", "machine_lines", "probes", "pyinfra"},
    "operations": {"facts", "operations", "onhost", "drivers", "checks", "contract", "keys", "pyinfra"},
    "deploys": {*PURE, "locking", "docker_here", "facts", "operations", "deploys", "onhost", "pyinfra"},
}


def imported(file: Path) -> set[str]:
    """Our own modules and pyinfra, as far as a file imports them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" if module == "beeyard" else module for alias in node.names]
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            top, _, rest = name.partition(".")
            found |= {"pyinfra"} if top == "pyinfra" else {rest.partition(".")[0]} if top == "beeyard" else set()
    return found - {""}


def test_imports_point_downwards() -> None:
    for file in PACKAGE.rglob("*.py"):
        layer = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if layer != "__init__":
            assert imported(file) <= ALLOWED[layer], file


def test_what_runs_on_hosts_needs_the_standard_library_alone() -> None:
    for file in (*(PACKAGE / "onhost").glob("*.py"), PACKAGE / "bench" / "inside.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), file
