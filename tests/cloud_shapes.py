"""
The shapes of RunPod's and Vast.ai's APIs that we rely on, by hand, and RunPod's own document where it is at hand.

Source: RunPod's OpenAPI document (REST v1), runpodctl's ``internal/api`` (GraphQL), docs.vast.ai's OpenAPI files.
"""

import json
import re
from typing import Any

from jsonschema import Draft202012Validator

from beeyard.catalog import PROJECT
from tests.cloud_stand_in import Exchange

# RunPod's own document, where a folder beside this clone has it (docs.runpod.io: api-reference/openapi.json).
OPENAPI = next(iter(sorted(PROJECT.parent.glob("*/data/runpod-openapi.json"))), None)
TEXT, NUMBER, WHOLE, YES = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}
AT_LEAST = {"type": "object", "properties": {"gte": NUMBER, "lte": NUMBER}, "additionalProperties": False}
IS = {"type": "object", "properties": {"eq": {}}, "required": ["eq"], "additionalProperties": False}
INSTANT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with these keys and no other."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


RENT = closed(
    ["name", "cloudType", "gpuTypeId", "gpuCount", "imageName", "ports", "env", "volumeMountPath"],
    name={"type": "string", "maxLength": 191},
    cloudType={"enum": ["SECURE", "COMMUNITY", "ALL"]},
    gpuTypeId=TEXT,
    gpuCount=WHOLE,
    imageName=TEXT,
    containerDiskInGb=WHOLE,
    volumeInGb=WHOLE,
    volumeMountPath=TEXT,
    networkVolumeId=TEXT,
    dataCenterId=TEXT,
    ports={"type": "string", "pattern": r"^\d+/(http|tcp)(,\d+/(http|tcp))*$"},
    startSsh=YES,
    supportPublicIp=YES,
    allowedCudaVersions={"type": "array", "items": {"type": "string", "pattern": r"^1[123]\.\d$"}, "minItems": 1},
    dockerArgs=TEXT,
    env={"type": "array", "items": closed(["key", "value"], key=TEXT, value=TEXT), "maxItems": 50},
    terminateAfter=INSTANT,
    stopAfter=INSTANT,
)
GRAPHQL = closed(["query", "variables"], query=TEXT, variables=closed([], input=RENT))
BUNDLES = closed(
    ["type", "limit", "allocated_storage", "order"],
    type={"enum": ["ondemand"]},
    limit=WHOLE,
    allocated_storage=NUMBER,
    order={"type": "array", "items": {"type": "array", "items": TEXT}},
    verified=IS, rentable=IS, rented=IS, gpu_arch=IS, cpu_arch=IS, num_gpus=IS,
    **dict.fromkeys(
        ("gpu_ram", "reliability", "direct_port_count", "inet_down", "disk_space", "duration", "cuda_max_good",
         "dph_total"),
        AT_LEAST,
    ),
)  # fmt: skip
ASK = closed(
    ["image", "label", "disk", "runtype", "env", "onstart"],
    image={"type": "string", "maxLength": 1024},
    label={"type": "string", "maxLength": 256},
    disk={"type": "number", "minimum": 8},
    runtype={"enum": ["ssh_direct"]},
    target_state={"enum": ["running", "stopped"]},
    cancel_unavail=YES,
    env={"type": "object", "additionalProperties": {"type": "string", "maxLength": 256}},
    onstart={"type": "string", "maxLength": 4096},
)
# Method, path, and what a request's body must be; None: there is none.
REQUESTS: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", r"/v1/pods(/[a-z0-9]+)?", None),
    ("POST", r"/v1/pods/[a-z0-9]+/(start|stop)", None),
    ("DELETE", r"/v1/pods/[a-z0-9]+", None),
    ("GET", r"/v1/(networkvolumes|billing/pods)", None),
    ("POST", r"/graphql", GRAPHQL),
    ("POST", r"/api/v0/bundles/", BUNDLES),
    ("PUT", r"/api/v0/asks/\d+/", ASK),
    ("GET", r"/api/v1/instances/|/api/v0/instances/\d+/", None),
    ("PUT", r"/api/v0/instances/\d+/", closed(["state"], state={"enum": ["stopped", "running"]})),
    ("DELETE", r"/api/v0/instances/\d+/", closed([])),
    ("POST", r"/api/v0/instances/\d+/ssh/", closed(["ssh_key"], ssh_key={"type": "string", "pattern": "^ssh-"})),
]


def check(exchange: Exchange) -> None:
    """Fail unless a request is one that we know, in its shape; and by RunPod's document where that is at hand."""
    known = [
        body for method, path, body in REQUESTS if method == exchange.method and re.fullmatch(path, exchange.path)
    ]
    assert len(known) == 1, f"{exchange.method} {exchange.path} is no request that we know"
    if known[0] is None:
        assert exchange.body is None, f"{exchange.method} {exchange.path} has no body"
    else:
        Draft202012Validator(known[0]).validate(exchange.body)
    if exchange.path.startswith("/v1/") and OPENAPI is not None:
        _by_the_document(exchange, json.loads(OPENAPI.read_text()))


def _by_the_document(exchange: Exchange, document: dict[str, Any]) -> None:
    path = exchange.path.removeprefix("/v1")
    for template, operations in document["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and exchange.method.lower() in operations:
            operation = operations[exchange.method.lower()]
            break
    else:
        raise AssertionError(f"RunPod's document has no {exchange.method} {path}")
    allowed = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
    assert set(exchange.query) <= allowed, f"{path}: {set(exchange.query) - allowed}"
    assert exchange.body is None or "requestBody" in operation
    if exchange.status < 300 and not exchange.is_fault:
        # The document gives 200 for start, stop and restart, and their content to none of them.
        answer = operation["responses"][str(exchange.status)].get("content", {}).get("application/json", {})
        if "schema" in answer:
            schema = _with_nulls({**answer["schema"], "components": document["components"]})
            Draft202012Validator(schema).validate(exchange.answer)


def _with_nulls(schema: Any) -> Any:
    """OpenAPI 3.0's ``nullable`` as JSON Schema has it."""
    if isinstance(schema, list):
        return [_with_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _with_nulls(value) for key, value in schema.items() if key != "nullable"}
    if schema.get("nullable") is True and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made
