# SPDX-License-Identifier: Apache-2.0
"""openapi.yaml for tests, and the JSON form of it that the broker serves.

`python tests/support/openapi.py` writes broker/openapi.json anew after a change of openapi.yaml.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

_TOP = Path(__file__).parents[2]
SERVED = _TOP / "broker" / "openapi.json"

SPEC: dict[str, Any] = yaml.safe_load((_TOP / "openapi.yaml").read_text())


def validator(schema_name: str) -> Draft202012Validator:
    """Checks a value against one of components.schemas."""
    resource = Resource(contents=SPEC, specification=DRAFT202012)
    registry: Registry[Any] = Registry().with_resource("urn:openapi", resource)
    reference = {"$ref": f"urn:openapi#/components/schemas/{schema_name}"}
    return Draft202012Validator(reference, registry=registry)


def as_served() -> str:
    return json.dumps(SPEC, ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    SERVED.write_text(as_served())
