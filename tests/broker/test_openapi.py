# SPDX-License-Identifier: Apache-2.0
"""openapi.yaml is the contract: valid, and the same as the table, the codes and the parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from broker import __version__
from broker.environ import BASES, MAX_NAMES
from broker.errors import PROBLEM_TYPE, BrokerError, InvalidFieldError, UnauthenticatedError
from broker.model import Confinement, ExecRequest, Network, OnLimit, RunReason
from broker.operations import (
    MAX_ARGV_ITEMS,
    MAX_LABEL_CHARS,
    MAX_REQUEST_ROOTS,
    MAX_SCRIPT_BYTES,
    OPERATIONS,
    parse_exec_request,
)
from broker.paths import MAX_PATH_BYTES
from tests.support.openapi import SERVED, SPEC, as_served, validator

SCHEMAS = SPEC["components"]["schemas"]
ROWS = {(row.method.lower(), row.path): row for row in OPERATIONS}
CODES = {cls.code: cls for cls in BrokerError.__subclasses__()}


def described() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in SPEC["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def response(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    found: dict[str, Any] = SPEC["components"]["responses"][node["$ref"].rsplit("/", 1)[1]]
    return found


def test_the_document_is_valid_openapi_31():
    OpenAPIV31SpecValidator(SPEC).validate()
    assert SPEC["openapi"].startswith("3.1")
    assert SPEC["info"]["version"] == __version__


def test_what_is_served_is_this_document():
    """After a change: python tests/support/openapi.py."""
    assert SERVED.read_text() == as_served()


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_valid_json_schema(name: str):
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_the_routes_are_those_of_the_table():
    assert {(method, path) for method, path, _ in described()} == set(ROWS)


@pytest.mark.parametrize(
    ("method", "path", "operation"), [*described()], ids=lambda v: v if isinstance(v, str) else ""
)
def test_an_operation_says_what_its_row_says(method: str, path: str, operation: dict[str, Any]):
    row = ROWS[method, path]
    assert operation["operationId"] == row.name
    assert operation.get("x-capability") == row.capability
    assert (operation.get("security") == []) == (not row.authenticated)
    assert ("requestBody" in operation) == (row.parse is not None)
    statuses = set(operation["responses"])
    assert ("401" in statuses) == row.authenticated
    assert ("415" in statuses) == (row.parse is not None)
    assert {"200", "400", "403", "404", "405", "408", "413", "431", "500", "503"} <= statuses


def test_every_code_is_described_under_its_status_and_no_other():
    listed: dict[str, set[int]] = {code: set() for code in CODES}
    for _, _, operation in described():
        for status, node in operation["responses"].items():
            for word in re.findall(r"`([a-z_]+)`", response(node)["description"]):
                if word in listed:
                    listed[word].add(int(status))
    assert listed == {code: {cls.status} for code, cls in CODES.items()}


def test_the_problem_schema_lists_every_code_and_layer():
    members = SCHEMAS["Problem"]["properties"]
    assert sorted(members["code"]["enum"]) == sorted(CODES)
    assert set(members["layer"]["enum"]) == {cls.layer for cls in CODES.values()}


def test_every_error_is_a_problem_document():
    for _, path, operation in described():
        for status, node in operation["responses"].items():
            if int(status) >= 400:
                content = response(node)["content"]
                assert content[PROBLEM_TYPE]["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert set(content) == {PROBLEM_TYPE} or (path, status) == ("/readyz", "503")


@pytest.mark.parametrize(
    "problem",
    [
        UnauthenticatedError().problem(),
        InvalidFieldError("argv", "is not an array").problem("17", "ab" * 32),
    ],
    ids=["401", "400"],
)
def test_a_problem_of_ours_fits_the_schema(problem: dict[str, object]):
    validator("Problem").validate(problem)
    assert not validator("Problem").is_valid({**problem, "code": "else"})


def test_words_are_those_of_the_model():
    def values(enum: Any) -> set[str]:
        return {member.value for member in enum}

    assert set(SCHEMAS["RunReason"]["enum"]) == values(RunReason)
    assert set(SCHEMAS["Environment"]["properties"]["base"]["enum"]) == set(BASES)
    confinement = SCHEMAS["Confinement"]["properties"]
    assert set(confinement["mode"]["enum"]) == values(Confinement)
    assert set(confinement["network"]["enum"]) == values(Network)
    output = SCHEMAS["ExecRequest"]["properties"]["output"]["properties"]
    assert set(output["on_limit"]["enum"]) == values(OnLimit)


def test_the_fields_of_a_request_are_those_of_the_parser():
    described_fields = set(SCHEMAS["ExecRequest"]["properties"])
    taken = {member.name for member in fields(ExecRequest)}
    nested = {"head_bytes", "tail_bytes", "on_limit"}
    assert described_fields == taken - nested | {"cwd_b64", "output"}
    assert set(SCHEMAS["ExecRequest"]["properties"]["output"]["properties"]) == nested


def test_limits_are_those_of_the_parser():
    properties = SCHEMAS["ExecRequest"]["properties"]
    assert properties["argv"]["maxItems"] == MAX_ARGV_ITEMS
    assert properties["script"]["maxLength"] == MAX_SCRIPT_BYTES
    assert properties["env"]["maxProperties"] == MAX_NAMES
    assert properties["roots"]["maxItems"] == MAX_REQUEST_ROOTS
    assert properties["label"]["maxLength"] == MAX_LABEL_CHARS
    assert SCHEMAS["Path"]["maxLength"] == MAX_PATH_BYTES


BODIES: list[tuple[bool, dict[str, object]]] = [
    (True, {"argv": ["true"]}),
    (True, {"script": "true"}),
    (True, {"argv": ["ls", {"b64": "/w=="}], "cwd": "/srv", "timeout_ms": 1, "grace_ms": 10_000}),
    (True, {"argv": ["x"], "cwd_b64": "L3Nydg==", "stdin": "none", "label": "x"}),
    (True, {"argv": ["x"], "stdin": {"b64": "eA=="}, "output": {"head_bytes": 0}}),
    (True, {"argv": ["x"], "roots": [{"path": "/a", "access": ["read", "write", "exec"]}]}),
    (True, {"argv": ["x"], "roots": [], "env": {"A": "1", "B%%": {"b64": "/w=="}}}),
    (False, {}),
    (False, {"argv": ["x"], "script": "x"}),
    (False, {"argv": []}),
    (False, {"argv": "ls"}),
    (False, {"argv": [1]}),
    (False, {"argv": [{"b64": "eA==", "x": 1}]}),
    (False, {"script": ""}),
    (False, {"argv": ["x"], "cwd": "srv"}),
    (False, {"argv": ["x"], "cwd": "/a", "cwd_b64": "L2E="}),
    (False, {"argv": ["x"], "timeout_ms": 0}),
    (False, {"argv": ["x"], "timeout_ms": 1.5}),
    (False, {"argv": ["x"], "timeout_ms": True}),
    (False, {"argv": ["x"], "timeout_ms": None}),
    (False, {"argv": ["x"], "stdin": "pipe"}),
    (False, {"argv": ["x"], "env": {"A=": "1"}}),
    (False, {"argv": ["x"], "env": {"A": 1}}),
    (False, {"argv": ["x"], "roots": [{"path": "/a"}]}),
    (False, {"argv": ["x"], "roots": [{"access": ["read"]}]}),
    (False, {"argv": ["x"], "roots": [{"path": "/a", "path_b64": "L2E=", "access": ["read"]}]}),
    (False, {"argv": ["x"], "roots": [{"path": "/a", "access": ["rw"]}]}),
    (False, {"argv": ["x"], "output": {"on_limit": "stop"}}),
    (False, {"argv": ["x"], "output": {"head_bytes": -1}}),
    (False, {"argv": ["x"], "label": ""}),
    (False, {"argv": ["x"], "timout_ms": 5}),
]


@pytest.mark.parametrize(("valid", "body"), BODIES, ids=lambda value: json.dumps(value)[:60])
def test_the_schema_and_the_parser_agree(valid: bool, body: dict[str, object]):
    assert validator("ExecRequest").is_valid(body) is valid
    try:
        parse_exec_request(json.dumps(body).encode())
    except BrokerError:
        assert not valid
    else:
        assert valid


def test_the_example_of_a_result_fits_its_schema_and_a_damaged_one_does_not():
    content = SPEC["paths"]["/v1/exec"]["post"]["responses"]["200"]["content"]["application/json"]
    example = content["examples"]["exited"]["value"]
    check = validator("ExecResult")
    check.validate(example)
    for name in SCHEMAS["ExecResult"]["required"]:
        assert not check.is_valid({key: value for key, value in example.items() if key != name})
    for damage in (
        {"reason": "done"},
        {"stdout": {**example["stdout"], "b64": ""}},
        {"stdout": {**example["stdout"], "encoding": "base64"}},
        {"exit": {"code": 0}},
        {"confinement": {**example["confinement"], "abi": 2}},
    ):
        assert not check.is_valid({**example, **damage})
