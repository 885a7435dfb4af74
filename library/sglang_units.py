#!/usr/bin/python
"""Install the files of all instances of a host as one set."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_units
short_description: Install the units and files of all SGLang instances of a host as one set
description:
  - Compares the wanted files with the host, has C(systemd-analyze verify) judge the units and the engine's
    own parser and resolver the command lines, and only then changes anything.
  - Records the files of each instance as a state. Those of an instance that has to be started, restarted or
    stopped (O(later)) change at its turn, by M(sglang_switch); all others are renamed into place at once.
  - Also places the kit (launcher and on-host tools) that the units start.
  - Files that an earlier run installed and that are not wanted any more are removed; their units are
    stopped first. Nothing else on the host is touched.
options:
  files:
    description: Every file that shall be there.
    type: list
    elements: dict
    required: true
    options:
      path: {description: Absolute path., type: path, required: true}
      content: {description: The whole text., type: str, required: true}
      mode: {description: Mode in octal digits., type: str, default: "0644"}
      group: {description: Group; the owner is root., type: str, default: root}
  secrets:
    description: Files that root alone may read and that are never shown, from the filter C(sglang_secrets).
    type: list
    elements: dict
    default: []
    options:
      path: {description: Absolute path., type: path, required: true}
      content: {description: The secret., type: str, required: true}
  plans:
    description:
      - Plans of the instances, as the filter C(sglang_plan) returns them. The engine checks those that the
        host does not have installed with the same command line and environment.
    type: list
    elements: dict
    default: []
  later:
    description: Names of instances whose files change at their turn.
    type: list
    elements: str
    default: []
  adopted:
    description: >-
      What is taken over from others, from the return value of this name of M(sglang_service_info); stopped
      before any file changes, units for good.
    type: dict
    default: {}
  by:
    description: Who deploys, and what; recorded with each new state (C(user), C(controller), C(commit)).
    type: dict
    default: {}
  user:
    description: User of the units, as which the engine checks.
    type: str
    default: sglang
  group:
    description: Group that may read what was recorded, secrets aside.
    type: str
    default: sglang
  enabled:
    description: Units that come up at boot besides those of instances that shall be started.
    type: list
    elements: str
    default: []
  root:
    description: Directory of the kit.
    type: path
    default: /opt/sglang
  commands:
    description: Directory of the commands that people type.
    type: path
    default: /usr/local/bin
  manifest:
    description:
      - Where the names of the installed files are kept. What it names and is not wanted any more is removed,
        so nobody but root may write its directory.
    type: path
    default: /etc/sglang/files.json
  states:
    description: Where the states of the instances are recorded.
    type: path
    default: /var/lib/sglang/instances
attributes:
  check_mode:
    description: >-
      Predicts the same changes; nothing is written. Where a release, a model or the user is missing, the
      engine checks nothing.
    support: full
  diff_mode: {description: Shows each file before and after., support: full}
  idempotent: {description: A second run changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Install the units
  sglang_units:
    files:
      - path: /etc/systemd/system/sglang-chat.service
        content: "{{ lookup('ansible.builtin.template', 'instance.service.j2') }}"
    enabled: [sglang-chat.service]
"""

RETURN = r"""
changed_paths:
  description: >-
    Paths that differ from what is wanted; each is written or removed, at once or at its instance's turn.
  type: list
  elements: str
  returned: always
  sample: [/etc/systemd/system/sglang-chat.service]
stopped:
  description: Units that were stopped because their instance left the inventory, and what was taken over.
  type: list
  elements: str
  returned: always
  sample: [sglang-old.service]
states:
  description: The wanted state by instance name; none for one that check mode would record.
  type: dict
  returned: always
  sample: {chat: 20261129T181502Z-667903be}
unproven:
  description: Names of instances whose wanted state is not the known-good one.
  type: list
  elements: str
  returned: always
  sample: [chat]
checks:
  description: The engine's answer by instance, for those that it checked.
  type: dict
  returned: always
  sample:
    chat:
      phase: ok
      message: ""
      overrides:
        - {field: page_size, asked: 1, effective: 64, given: false, by: attention_hook}
      resolved: {page_size: 64}
unchecked:
  description: Instances whose release, model or user is not on the host yet (in check mode).
  type: list
  elements: str
  returned: always
  sample: [chat]
notes:
  description: What people have to know, one line each; values that the engine changes, what was not checked.
  type: list
  elements: str
  returned: always
  sample: ["chat: page_size: asked 1, the engine makes it 64 (attention_hook)"]
"""

from datetime import datetime, timezone
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import (
    adopt,
    cli,  # noqa: F401 - the kit ships itself: an import is what makes Ansible send a room to the host
    credentials,
    fileset,
    kit,
    model_files,
    overrides,
    precheck,
    state,
    survey,
    switch,
    systemd,
)
from ansible.module_utils.sglang_kit.problem import ProblemsError


def origin(plan: dict[str, Any], by: dict[str, str], host: dict[str, Any]) -> dict[str, Any]:
    """Say where a state comes from, and on what it stands."""
    model = plan["model"]
    return {"by": by, "model": {"path": model, "fingerprint": model_files.fingerprint(model)}, "host": host}


def main() -> None:
    """Compare, verify, swap."""
    module = AnsibleModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                    "group": {"type": "str", "default": "root"},
                },
            },
            "secrets": credentials.ARGUMENT,
            "plans": {"type": "list", "elements": "dict", "default": []},
            "later": {"type": "list", "elements": "str", "default": []},
            "adopted": {"type": "dict", "default": {}},
            "by": {"type": "dict", "default": {}},
            "user": {"type": "str", "default": "sglang"},
            "group": {"type": "str", "default": "sglang"},
            "enabled": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/opt/sglang"},
            "commands": {"type": "path", "default": "/usr/local/bin"},
            "manifest": {"type": "path", "default": "/etc/sglang/files.json"},
            "states": {"type": "path", "default": state.ROOT},
        },
        supports_check_mode=True,
    )
    given = module.params
    units, pids = given["adopted"].get("units", []), given["adopted"].get("pids", [])
    wanted = [
        fileset.File(file["path"], file["content"], int(file["mode"], 8), group=file["group"])
        for file in given["files"]
    ]
    wanted += [fileset.File(file["path"], file["content"], 0o600) for file in given["secrets"]]
    wanted += kit.files(given["root"], given["commands"])
    plans, store = given["plans"], state.Store(given["states"], group=given["group"])
    owner = {**switch.owners(store), **{path: plan["name"] for plan in plans for path in switch.paths(plan)}}
    installed = [*fileset.read_manifest(given["manifest"]), *owner]
    sets = {plan["name"]: [file for file in wanted if owner.get(file.path) == plan["name"]] for plan in plans}
    wanted.append(fileset.manifest(given["manifest"], wanted))
    changes = fileset.compare(wanted, installed)
    now = [change for change in changes if owner.get(change.path) not in given["later"]]
    removed = [change.path for change in changes if change.wanted is None]
    left = {owner[path] for path in removed if path in owner} - {plan["name"] for plan in plans}
    gone = sorted({*systemd.unit_names(removed), *(f"sglang-{name}.service" for name in left)})
    fresh = [plan for plan in plans if not store.staged(plan, sets[plan["name"]])]
    started = [plan["unit"] for plan in plans if plan["state"] == "started"]
    to_enable = systemd.not_enabled([*given["enabled"], *started])
    to_disable = systemd.enabled([plan["unit"] for plan in plans if plan["unit"] not in started])
    if not module.check_mode:
        complaints = systemd.verify({change.path: change.after for change in changes if change.after})
        if complaints:
            module.fail_json(msg="systemd refuses the units; nothing was changed:\n" + "\n".join(complaints))
    due = precheck.due(plans)
    possible = [plan for plan in due if precheck.possible(plan, given["user"])]
    unchecked = [plan["name"] for plan in due if module.check_mode and plan not in possible]
    checks = precheck.ask([plan for plan in due if plan["name"] not in unchecked], given["user"])
    judged = [overrides.judge(plan, checks[plan["name"]]) for plan in due if plan["name"] in checks]
    refused = [problem for one in judged for problem in one.refused]
    if refused:
        module.fail_json(msg=f"nothing was changed: {ProblemsError(refused)}", checks=checks)
    if not module.check_mode:
        host = survey.marks() if fresh else {}
        for plan in fresh:
            moment = datetime.now(timezone.utc)
            store.stage(plan, sets[plan["name"]], origin(plan, given["by"], host), moment)
        systemd.stop_and_disable([*gone, *units])
        stubborn = adopt.end(pids)
        if stubborn:
            module.fail_json(msg=f"these processes do not end; no file was changed: {stubborn}")
        fileset.apply(now)
        if systemd.unit_names(change.path for change in now):
            systemd.reload()
        turn = [plan["unit"] for plan in plans if plan["name"] in given["later"]]
        systemd.enable([unit for unit in to_enable if unit not in turn])
        systemd.disable([unit for unit in to_disable if unit not in turn])
    module.exit_json(
        changed=bool(changes or fresh or to_enable or to_disable or units or pids),
        changed_paths=[change.path for change in changes],
        stopped=[*gone, *units, *(f"pid {pid}" for pid in pids)],
        states={
            plan["name"]: None
            if module.check_mode and plan in fresh
            else store.pointed(plan["name"], state.WANTED)
            for plan in plans
        },
        unproven=[
            plan["name"]
            for plan in plans
            if (module.check_mode and plan in fresh)
            or store.pointed(plan["name"], state.WANTED) != store.pointed(plan["name"], state.KNOWN_GOOD)
        ],
        checks=checks,
        unchecked=unchecked,
        notes=[
            *(note for one in judged for note in one.notes),
            *(
                f"{name}: not checked, its release, model or user is not on this host yet"
                for name in unchecked
            ),
        ],
        diff=[
            {
                "before_header": change.path,
                "after_header": change.path,
                "before": credentials.shown(change.path, change.before, "the old secret\n"),
                "after": credentials.shown(change.path, change.after, "the new secret\n"),
            }
            for change in changes
            if not change.path.startswith(f"{given['root']}/kits/")  # the link to them tells enough
        ],
    )


if __name__ == "__main__":
    main()
