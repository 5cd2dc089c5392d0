# SPDX-License-Identifier: Apache-2.0
"""`host-broker status`: what the files say, and what the running broker says, side by side."""

from __future__ import annotations

import os
from typing import Any

from broker.ceiling import Ceiling
from broker.client import Client, ClientError
from broker.config import Settings, load_ceiling, load_secrets
from broker.gate import access_words
from broker.readiness import is_thrown
from broker.startup import StartupError

SHOWN_ROOTS = 20


def collect(settings: Settings) -> dict[str, Any]:
    """A JSON-ready report; for the operator, so it names paths.  `ready` sums it up."""
    ceiling = load_ceiling(settings)
    answer = _ask(settings)
    return {
        "ready": answer.get("ready") is True and ceiling.deny_code is None,
        "broker": {"socket": settings.socket, "tcp": settings.tcp, **answer},
        "ceiling": {"file": str(settings.ceiling_file), **_ceiling(ceiling)},
        "secret": _secret(settings),
        "kill_switch": is_thrown(settings.kill_switch),
        "audit": str(settings.audit_dir),
    }


def _ask(settings: Settings) -> dict[str, Any]:
    try:
        with Client(
            socket_path=settings.socket, secret_file=os.fspath(settings.secret_file)
        ) as client:
            return {"answers": True, **client.ready()}
    except (ClientError, OSError) as error:
        return {"answers": False, "ready": False, "error": str(error)}


def _ceiling(ceiling: Ceiling) -> dict[str, Any]:
    return {
        "denies_everything": ceiling.deny_reason,
        "confinement": ceiling.confinement.value,
        "network": ceiling.network.value,
        "environment": ceiling.environment,
        "baseline": ceiling.baseline,
        "roots": [[os.fsdecode(root.path), access_words(root.access)] for root in ceiling.roots],
        "warnings": list(ceiling.warnings),
    }


def _secret(settings: Settings) -> str:
    try:
        load_secrets(settings)
    except StartupError as refused:
        return f"{refused}; {refused.fix}"
    return "current and next" if settings.next_secret_file.exists() else "current"


def render(report: dict[str, Any]) -> str:
    """The report for people: the answer first, then what it rests on."""
    broker, ceiling = report["broker"], report["ceiling"]
    lines = [f"{'ready' if report['ready'] else 'NOT READY'}   {broker['socket']}"]
    if not broker["answers"]:
        lines.append(f"broker      {broker['error']}")
    failing = [name for name, holds in broker.get("checks", {}).items() if not holds]
    if failing:
        lines.append(f"failing     {', '.join(failing)}")
    if report["kill_switch"]:
        lines.append("kill switch thrown: every run is refused")
    lines.append(f"secret      {report['secret']}")
    lines.append(f"ceiling     {ceiling['file']}")
    lines += [f"            {line}" for line in _ceiling_lines(ceiling)]
    lines.append(f"audit       {report['audit']}")
    return "\n".join(lines)


def _ceiling_lines(ceiling: dict[str, Any]) -> list[str]:
    if ceiling["denies_everything"]:
        return [f"denies everything: {ceiling['denies_everything']}"]
    mode = "UNCONFINED" if ceiling["confinement"] == "unconfined" else ceiling["confinement"]
    baseline = "with" if ceiling["baseline"] else "without"
    lines = [f"{mode}, network {ceiling['network']}, {baseline} the system baseline"]
    lines += [f"{access:16} {path}" for path, access in ceiling["roots"][:SHOWN_ROOTS]]
    if len(ceiling["roots"]) > SHOWN_ROOTS:
        lines.append(f"and {len(ceiling['roots']) - SHOWN_ROOTS} more")
    return lines + [f"warning: {warning}" for warning in ceiling["warnings"]]
