"""Records of benchmarks, made up, for tests of what is done with them."""

from datetime import UTC, datetime
from typing import Any

from beeyard.bench.record import Asked, Host, Protocol, Record, Request, Variant

WHEN = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)


def request(**fields: Any) -> Request:
    given = {
        "variant": "dflash", "workload": "guide", "prompt": "kv", "round": 1, "is_scored": True, "began_s": 1.0,
        "ended_s": 2.0, "seed": 1, "temperature": 0.7, "max_tokens": 64, **fields,
    }  # fmt: skip
    return Request(**given)


def record(*requests: Request, **fields: Any) -> Record:
    given = {
        "tool_version": "0.1.0", "began": WHEN, "ended": WHEN, "host": Host(name="attic"),
        "protocol": Protocol(rounds=1, warm_ups=1, nonce="a1", seed=1), "variants": (Variant(name="dflash"),),
        "prompts": (Asked(workload="guide", prompt="kv", sha256="0" * 64, max_tokens=64, temperature=0.7),),
        "requests": requests, **fields,
    }  # fmt: skip
    return Record(**given)
