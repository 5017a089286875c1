"""Remove model files that neither the host's preset nor a server that a switch could go back to names."""

from pathlib import Path

from pyinfra import host, logger
from pyinfra.api import deploy

from beeyard.catalog import CatalogError, load_catalog
from beeyard.deploys.surveyed import refused
from beeyard.facts.model_files import ModelStore
from beeyard.operations import model_files
from beeyard.spec import every_variant


@deploy("Prune")
def prune() -> None:
    """Only what a deploy put there: its files have a stamp, in a folder of twelve hex digits."""
    try:
        # Where files lie does not depend on what runs them.
        specs = every_variant({**host.data.dict(), "llama_runtime": "systemd"}, load_catalog())
    except CatalogError as error:
        refused([str(error)])
        return
    models_dir, prefix = str(specs[0].models_dir), str(specs[0].prefix)
    store = host.get_fact(ModelStore, models_dir=models_dir, prefix=prefix)
    # A folder is named after its file's digest; a later part of a split one lies beside the first.
    kept = {file.digest for spec in specs for file in spec.model_files} | store["named"]
    unnamed = {path: size for path, size in store["stored"].items() if Path(path).parent.name not in kept}
    if not unnamed:
        logger.info(f"{host.print_prefix}everything in {models_dir} is named")
    for path, size in host.loop(sorted(unnamed.items())):
        model_files.removed(name=f"Remove {path} ({size / 1e9:.2f} GB)", path=path)
