"""A Debian system of nothing but apt's and dpkg's files, and a signed repository: the real apt and dpkg use both."""

import hashlib
import os
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

# A mirror that answers 503 as often as the file `hiccups` says.
MIRROR = r"""
import http.server, pathlib, sys
root, port = sys.argv[1:]
class Mirror(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *rest):
        super().__init__(*rest, directory=root)
    def do_GET(self):
        hiccups = pathlib.Path(root, "hiccups")
        left = int(hiccups.read_text()) if hiccups.exists() else 0
        if left and not self.path.endswith("key.asc"):
            hiccups.write_text(str(left - 1))
            self.send_error(503)
        else:
            del self.headers["If-Modified-Since"]  # it changes within a second here
            super().do_GET()
http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Mirror).serve_forever()
"""


class AptRoot:
    """Such a system below a directory. What has it in its environment sees no other."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.mirror, self.keys = directory / "mirror", directory / "keys"
        self.dpkg = directory / "var/lib/dpkg"
        for folder in (
            "mirror", "etc/apt/apt.conf.d", "etc/apt/sources.list.d", "etc/apt/preferences.d",
            "etc/apt/trusted.gpg.d",
            "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/log/apt", "var/lib/dpkg/info",
            "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/dpkg/alternatives",
        ):  # fmt: skip
            (directory / folder).mkdir(parents=True)
        self.keys.mkdir(mode=0o700)
        (self.dpkg / "status").touch()
        (directory / "apt.conf").write_text(
            f'Dir "{directory}";\nDir::Log "{directory}/var/log/apt";\nAPT::Sandbox::User "root";\n'
            f'DPkg::Options {{ "--root={directory}"; "--force-not-root"; "--log=/dev/null"; }};\n'
        )
        self._gpg("--passphrase", "", "--quick-generate-key", "test@example.com", "rsa2048", "sign", "never")
        (directory / "key.gpg").write_bytes(self._gpg("--export"))
        self.uses_component("main")

    @property
    def environment(self) -> dict[str, str]:
        """Where apt and dpkg look."""
        root = str(self.directory)
        return {"APT_CONFIG": f"{root}/apt.conf", "DPKG_ROOT": root, "DPKG_FORCE": "not-root"}

    def uses_component(self, *components: str) -> None:
        """Have it know these components of the repository, and no other."""
        line = f"deb [signed-by={self.directory}/key.gpg] http://127.0.0.1:{self.port} test {' '.join(components)}\n"
        (self.directory / "etc/apt/sources.list").write_text(line)

    def package(
        self, name: str, version: str = "1", component: str = "main", files: dict[str, str] | None = None, **more: str
    ) -> None:
        """Put a package into the repository; files below /etc are its configuration files. ``publish`` after it."""
        folder = self.directory / "build" / name
        (folder / "DEBIAN").mkdir(parents=True, exist_ok=True)
        fields = {
            "Package": name, "Version": version, "Architecture": "all", "Maintainer": "t <t@example.com>",
            "Description": "t", **more,
        }  # fmt: skip
        control = "".join(f"{key}: {value}\n" for key, value in fields.items())
        (folder / "DEBIAN/control").write_text(control)
        for path, text in (files or {}).items():
            file = folder / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        configuration = "".join(f"{path}\n" for path in files or {} if path.startswith("/etc/"))
        (folder / "DEBIAN/conffiles").write_text(configuration)
        deb = f"{name}_{version}.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", folder, self.mirror / deb], check=True,
                       capture_output=True)  # fmt: skip
        content = (self.mirror / deb).read_bytes()
        index = self.mirror / "dists/test" / component / "binary-all" / "Packages"
        index.parent.mkdir(parents=True, exist_ok=True)
        with index.open("a") as file_:
            file_.write(f"{control}Filename: {deb}\nSize: {len(content)}\nSHA256: {_sha256(content)}\n\n")

    def publish(self) -> None:
        """Sign what the repository holds."""
        suite = self.mirror / "dists/test"
        found = sorted(suite.rglob("Packages"))
        lines = [f" {_sha256(file.read_bytes())} {file.stat().st_size} {file.relative_to(suite)}" for file in found]
        components = " ".join(sorted({file.parts[-3] for file in found}))
        head = [f"Date: {formatdate(usegmt=True)}", "Suite: test", f"Components: {components}", "Architectures: all"]
        (suite / "Release").write_text("\n".join([*head, "SHA256:", *lines, ""]))
        self._gpg("--clearsign", "--output", str(suite / "InRelease"), str(suite / "Release"))

    def serve(self) -> "subprocess.Popen[bytes]":
        """Start the mirror; it answers once this returns."""
        process = subprocess.Popen(
            [sys.executable, "-c", MIRROR, self.mirror, str(self.port)], stderr=subprocess.DEVNULL
        )
        (self.mirror / "key.asc").touch()
        for _ in range(100):
            try:
                urlopen(f"http://127.0.0.1:{self.port}/key.asc").close()
                break
            except URLError:
                time.sleep(0.05)
        return process

    def status(self, name: str) -> str:
        """dpkg's word on a package, as ``ii 1``; empty where it has none."""
        command = ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}${Version}", name]
        run = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, **self.environment}
        )
        return run.stdout

    def _gpg(self, *words: str) -> bytes:
        command = ["gpg", "--homedir", str(self.keys), "--batch", "--yes", "--quiet", *words]
        return subprocess.run(command, check=True, capture_output=True).stdout


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
