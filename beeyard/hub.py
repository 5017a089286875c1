"""The Hugging Face Hub: where a file is, and what it must be."""

import os

from beeyard.catalog import CatalogError, FileLock, HubFile

ENDPOINT = "https://huggingface.co"


def endpoint() -> str:
    """The Hub that HF_ENDPOINT names, else the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT


def file_url(source: HubFile, revision: str) -> str:
    """Where a file of a commit is downloaded from."""
    return f"{endpoint()}/{source.repository}/resolve/{revision}/{source.file}"


def public_url(source: HubFile, revision: str) -> str:
    """The same of the public Hub, whatever HF_ENDPOINT says: a file that is committed must not depend on it."""
    return f"{ENDPOINT}/{source.repository}/resolve/{revision}/{source.file}"


def token() -> str | None:
    """
    The token of HF_TOKEN, if it is set.

    :raises CatalogError: it cannot be one; what it is is not said.
    """
    value = os.environ.get("HF_TOKEN", "").strip()
    if any(character.isspace() for character in value):
        raise CatalogError("HF_TOKEN has white space inside. Fix: set it to the token alone")
    return value or None


def lock_file(source: HubFile) -> FileLock:
    """
    Ask the Hub for a file's commit, size in bytes and sha256.

    :raises CatalogError: in one sentence, why the Hub does not say.
    """
    # Half a second of importing that a deploy, which only needs the addresses above, does not pay.
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    api = HfApi(endpoint=endpoint(), token=token() or False)
    where = f"{source.repository} at {source.revision}"
    try:
        info = api.model_info(source.repository, revision=source.revision, files_metadata=True)
    except GatedRepoError as error:
        page = f"{endpoint()}/{source.repository}"
        raise CatalogError(f"{where} is gated. Fix: accept its licence at {page} with the token's account") from error
    except RevisionNotFoundError as error:
        raise CatalogError(f"{where}: there is no such revision. Fix: correct it in presets/models.yaml") from error
    except RepositoryNotFoundError as error:
        hint = "HF_TOKEN is refused, or the" if token() else "the"
        fix = "set HF_TOKEN, or correct" if not token() else "correct"
        raise CatalogError(f"{where}: {hint} repository does not exist. Fix: {fix} the repository's name") from error
    except (HfHubHTTPError, OSError) as error:
        raise CatalogError(
            f"{where}: the Hub does not answer ({error}). Fix: check the network, try again"
        ) from error
    except Exception as error:  # httpx's own errors, whichever of its generations the library uses
        raise CatalogError(f"{where}: the Hub cannot be reached ({error}). Fix: check the network") from error
    files = {sibling.rfilename: sibling for sibling in info.siblings or []}
    if source.file not in files:
        ggufs = ", ".join(sorted(name for name in files if name.endswith(".gguf"))) or "no GGUF file"
        raise CatalogError(f"{where} has no {source.file}. Fix: use one of: {ggufs}")
    found = files[source.file]
    if found.lfs is None or info.sha is None or found.size is None:
        raise CatalogError(f"{where}: the Hub tells no sha256 of {source.file}. Fix: use a file that it keeps in LFS")
    return FileLock(size=found.size, sha256=found.lfs.sha256, revision=info.sha)
