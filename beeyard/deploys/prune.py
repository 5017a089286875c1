"""Remove model files that neither the host's preset nor a server that a switch could go back to names."""

from pathlib import Path

from pyinfra import host, logger
from pyinfra.api import deploy

from beeyard.catalog import PROJECT, load_catalog
from beeyard.facts.model_files import ModelStore
from beeyard.operations import model_files
from beeyard.spec import HostKind, host_settings, named_models


@deploy("Prune")
def prune() -> None:
    """Only what a deploy put there: its files have a stamp, in a folder of twelve hex digits."""
    settings = host_settings(host.data.dict())
    # Where files lie depends on none of it.
    kind = HostKind(has_systemd=True, is_root=True)
    data = {**host.data.dict(), "llama_runtime": "systemd"}
    models_dir = Path(PROJECT) / (settings.models_dir or settings.prefix / "models")
    store = host.get_fact(ModelStore, models_dir=str(models_dir), prefix=str(settings.prefix))
    # The digest's folder is the file's; a later part of a split one lies beside a first that is named.
    kept = {Path(path).parent.name for path in named_models(data, load_catalog(), kind)} | store["named"]
    unnamed = {path: size for path, size in store["stored"].items() if Path(path).parent.name not in kept}
    if not unnamed:
        logger.info(f"{host.print_prefix}everything in {models_dir} is named")
    for path, size in host.loop(sorted(unnamed.items())):
        model_files.removed(name=f"Remove {path} ({size / 1e9:.2f} GB)", path=path)
