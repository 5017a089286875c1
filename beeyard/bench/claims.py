"""What others published of DFlash's speed (``results/claims.json``): claims with a source, not measurements."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from beeyard.bench.record import Amount, Name, Part, RecordError
from beeyard.catalog import PROJECT, sentence

CLAIMS = PROJECT / "results" / "claims.json"


class Claim(Part):
    """
    A published figure of one prompt; speeds are tokens a second, shares 0 to 1.

    ``drafted_per_s`` and ``speedup`` are the published median, or, with ``…_to…``, the lower end of a published
    range; ``speedup`` is None where its source gives none. ``accepted_of_drafted`` and ``accepted_of_all`` are of
    drafted and of all tokens. ``workload`` and ``prompt`` name the prompt of ours that it may be held against: None
    where its words are not known, or not among ours.
    """

    title: Name
    what: Literal["decode", "prefill"] = "decode"
    workload: str | None = None
    prompt: str | None = None
    base_per_s: Amount
    drafted_per_s: Amount
    drafted_to_per_s: Amount | None = None
    best_per_s: Amount | None = None
    speedup: Amount | None = None
    speedup_to: Amount | None = None
    accepted_of_drafted: float | None = Field(default=None, ge=0, le=1)
    accepted_of_all: float | None = Field(default=None, ge=0, le=1)


class Source(Part):
    """Who claims it, and of what: ``preset`` is the server of ours with the same model and drafter."""

    name: Name
    card: Name
    system: str = ""
    base_engine: str = ""
    engine: Name
    model: Name
    draft: Name
    preset: Name
    note: str = ""
    claims: tuple[Claim, ...]


class Claims(Part):
    """All of them. ``kind`` keeps the file from being taken for a record."""

    kind: Literal["claims"]
    note: Name
    sources: tuple[Source, ...]


def load_claims(file: Path = CLAIMS) -> Claims:
    """
    Read them.

    :raises RecordError: the file is not there, or holds something else.
    """
    try:
        return Claims.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{file}: {error.strerror}. Fix: restore it from the repository") from error
    except ValidationError as error:
        raise RecordError(
            f"{file} holds no claims ({sentence(error).partition('. Fix:')[0]}). Fix: correct it"
        ) from error
