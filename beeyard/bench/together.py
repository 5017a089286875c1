"""Several records as one, so that variants that were measured in runs of their own stand side by side. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beeyard.bench.record import Asked, Host, Record, RecordError


@dataclass(frozen=True)
class Together:
    """
    ``record`` has all variants, prompts, requests and samples, with times since the earliest beginning.

    ``parts`` are the records that it is made of, their variants under the names that they have in ``record``;
    ``hosts`` says by variant where it ran, ``notes`` what is to be said of the putting together.
    """

    record: Record
    parts: tuple[Record, ...]
    hosts: Mapping[str, Host]
    notes: tuple[str, ...]


def together(records: Sequence[tuple[str, Record]]) -> Together:
    """
    Put records together; variants of one name get the host's or a number behind theirs.

    :param records: with the names of their files, for messages
    :raises RecordError: two are the same run, or one prompt's words, limit or temperature differ between them.
    """
    if not records:
        raise RecordError("there is no record to report on. Fix: name files that `beeyard bench` wrote")
    _are_runs_of_their_own(records)
    began = min(one.began for _, one in records)
    names = _names([one for _, one in records])
    parts = tuple(
        _moved(one, mine, (one.began - began).total_seconds()) for (_, one), mine in zip(records, names, strict=True)
    )
    first = parts[0]
    if len(parts) == 1:
        return Together(first, parts, {one.name: first.host for one in first.variants}, ())
    record = first.model_copy(
        update={
            "tool_version": " and ".join(dict.fromkeys(one.tool_version for one in parts)),
            "began": began,
            "ended": max(one.ended for one in parts),
            "protocol": first.protocol.model_copy(
                update={
                    "rounds": min(one.protocol.rounds for one in parts),
                    "warm_ups": min(one.protocol.warm_ups for one in parts),
                    "order": tuple(name for one in parts for name in one.protocol.order),
                }
            ),
            "variants": tuple(one for part in parts for one in part.variants),
            "prompts": _asked(records),
            "requests": tuple(one for part in parts for one in part.requests),
            "gpu_samples": tuple(one for part in parts for one in part.gpu_samples),
            "agreement": tuple(one for part in parts for one in part.agreement or ()) or None,
            "tests_passed": tuple(one for part in parts for one in part.tests_passed or ()) or None,
            "notes": (),
        }
    )
    hosts = {one.name: part.host for part in parts for one in part.variants}
    return Together(record, parts, hosts, tuple(_notes(parts)))


def _are_runs_of_their_own(records: Sequence[tuple[str, Record]]) -> None:
    seen: dict[tuple[object, ...], str] = {}
    for name, one in records:
        run = (one.began, one.protocol.nonce, one.host.name, tuple(variant.name for variant in one.variants))
        if run in seen:
            raise RecordError(f"{seen[run]} and {name} are one run. Fix: name each record once")
        seen[run] = name


def _names(records: Sequence[Record]) -> list[dict[str, str]]:
    """What each record's variants are called when all are together."""
    counts = Counter(variant.name for one in records for variant in one.variants)
    places = Counter((variant.name, one.host.name) for one in records for variant in one.variants)
    taken: Counter[tuple[str, str]] = Counter()
    found = []
    for one in records:
        mine = {}
        for variant in one.variants:
            key = (variant.name, one.host.name)
            is_elsewhere = sum(name == variant.name for name, _ in places) > 1
            name = f"{variant.name}@{one.host.name}" if counts[variant.name] > 1 and is_elsewhere else variant.name
            taken[key] += 1
            mine[variant.name] = f"{name} #{taken[key]}" if places[key] > 1 else name
        found.append(mine)
    return found


def _moved(record: Record, names: Mapping[str, str], later_s: float) -> Record:
    tests = record.tests_passed
    return record.model_copy(
        update={
            "variants": tuple(one.model_copy(update={"name": names[one.name]}) for one in record.variants),
            "protocol": record.protocol.model_copy(
                update={"order": tuple(names.get(name, name) for name in record.protocol.order)}
            ),
            "requests": tuple(
                one.model_copy(
                    update={
                        "variant": names[one.variant],
                        "began_s": one.began_s + later_s,
                        "ended_s": one.ended_s + later_s,
                    }
                )
                for one in record.requests
            ),
            "gpu_samples": tuple(
                one.model_copy(update={"variant": names.get(one.variant, one.variant), "at_s": one.at_s + later_s})
                for one in record.gpu_samples
            ),
            "agreement": record.agreement
            and tuple(
                one.model_copy(
                    update={
                        "variant": names.get(one.variant, one.variant),
                        "baseline": names.get(one.baseline, one.baseline),
                    }
                )
                for one in record.agreement
            ),
            "tests_passed": tests
            and tuple(one.model_copy(update={"variant": names.get(one.variant, one.variant)}) for one in tests),
        }
    )


def _asked(records: Sequence[tuple[str, Record]]) -> tuple[Asked, ...]:
    found: dict[tuple[str, str], tuple[str, Asked]] = {}
    for name, record in records:
        for one in record.prompts:
            known_name, known = found.setdefault((one.workload, one.prompt), (name, one))
            if not is_same_question(known, one):
                raise RecordError(
                    f"{known_name} and {name} ask {one.workload}/{one.prompt} with other words, tokens or "
                    "temperature. Fix: report on them one by one, or measure both with the same workloads"
                )
    return tuple(one for _, one in found.values())


def is_same_question(one: Asked, other: Asked) -> bool:
    """Whether words, limit and temperature are the same."""
    return (one.sha256, one.max_tokens, one.temperature) == (other.sha256, other.max_tokens, other.temperature)


def _notes(parts: Sequence[Record]) -> list[str]:
    found = [
        "these were measured in runs of their own, not in turns: heat, load and time of day are in their differences"
    ]
    hosts = dict.fromkeys(one.host.name for one in parts)
    cards = {tuple(card.name for card in one.host.cards) for one in parts}
    if len(hosts) > 1 or len(cards) > 1:
        found.append(f"they ran on more than one machine ({', '.join(hosts)}): differences are of those, too")
    return found
