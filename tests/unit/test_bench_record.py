"""A record comes back as it was written; what is none, is of another version or is broken is said in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from beeyard.bench import record as records
from beeyard.bench.record import Asked, RecordError
from tests.records import record, request


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    answer = request(
        text="Bienen, 蜂", gaps_us=(10, 20), accepted_per_position=(3, 2), draft_n=6, draft_n_accepted=5, drafts=2,
        decode_per_s=12.5, completion_tokens=8,
    )  # fmt: skip
    written = record(answer, request(fault="the stream was cut. Fix: look at its log"))
    records.save(written, tmp_path / "new" / "one.json")
    assert records.load(tmp_path / "new" / "one.json") == written
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["one.json"]


def test_a_line_holds_a_request() -> None:
    text = records.dump(record(request(), request(round=2)))
    assert len([line for line in text.splitlines() if '"workload":"guide","prompt":"kv","round":' in line]) == 2
    assert json.loads(text)["schema_version"] == 1


def test_what_follows_from_a_request_is_computed() -> None:
    drafted = request(draft_n=20, draft_n_accepted=15, drafts=5, completion_tokens=21)
    assert drafted.acceptance == 0.75
    assert drafted.mean_accepted_length == 4.0
    assert drafted.drafted_share == 15 / 21
    plain = request(completion_tokens=21)
    assert (plain.acceptance, plain.mean_accepted_length, plain.drafted_share) == (None, None, None)


def test_only_what_is_scored_and_right_counts() -> None:
    good, other = request(), request(prompt="other")
    asked = [
        Asked(workload="guide", prompt=name, sha256="0" * 64, max_tokens=1, temperature=0) for name in ("kv", "other")
    ]
    found = record(
        good, other, request(is_scored=False), request(fault="cut. Fix: no"), prompts=tuple(asked)
    )  # fmt: skip
    assert list(found.scored("dflash")) == [good, other]
    assert list(found.scored("dflash", "guide", "kv")) == [good]
    assert list(found.scored("baseline")) == []
    assert [one.fault for one in found.faulty] == ["cut. Fix: no"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "is no record"),
        ('{"hosts": []}', "is no record"),
        ('{"schema_version": 7, "tool_version": "9.9"}', "schema 7, written by Beeyard 9.9; this one reads schema 1"),
        ('{"schema_version": 1}', "is a broken record (tool_version is"),
    ],
)
def test_what_is_no_record_is_said_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(RecordError, match=r"^old\.json .*Fix: ") as caught:
        records.parse(text, "old.json")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"decode_per_s": float("nan")}, "decode_per_s"),
        ({"decode_per_s": -1}, "decode_per_s"),
        ({"draft_n": "5"}, "draft_n"),
        ({"speed": 5}, "unknown key 'requests.0.speed'"),
        ({"variant": "mtp"}, "a request is of variant 'mtp', which is none of dflash"),
        ({"prompt": "list"}, "a request is of guide/list, which is none of its prompts"),
    ],
)
def test_a_broken_record_says_what_is_broken(change: dict[str, Any], says: str) -> None:
    fields = json.loads(records.dump(record(request())))
    fields["requests"][0].update(change)
    with pytest.raises(RecordError) as caught:
        records.parse(json.dumps(fields), "one.json")
    assert says in str(caught.value)
    assert "Fix: measure again" in str(caught.value)


def test_nothing_is_changed_afterwards() -> None:
    with pytest.raises(ValidationError):
        record(request()).tool_version = "2"


def test_a_file_that_is_not_there_or_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="Fix: name a file that `beeyard bench` wrote"):
        records.load(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="Fix: name a file that can be written"):
        records.save(record(), tmp_path / "file" / "one.json")
