#!/usr/bin/python
"""Install the files of all instances of a host as one set."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_units
short_description: Install the units and files of all SGLang instances of a host as one set
description:
  - Compares the wanted files with the host, stages the ones that differ, has C(systemd-analyze verify)
    judge the units and the engine's own parser and resolver the command lines, and only then renames all of
    them into place.
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
  user:
    description: User of the units, as which the engine checks.
    type: str
    default: sglang
  enabled:
    description: Units that come up at boot.
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
    description: Where the names of the installed files are kept.
    type: path
    default: /var/lib/sglang/files.json
attributes:
  check_mode:
    description: >-
      Predicts the same changes; nothing is written. Where a release or its user is missing, the engine
      checks nothing.
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
  description: Paths that were (or in check mode would be) written or removed.
  type: list
  elements: str
  returned: always
  sample: [/etc/systemd/system/sglang-chat.service]
stopped:
  description: Units that were stopped because their instance left the inventory.
  type: list
  elements: str
  returned: always
  sample: [sglang-old.service]
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
  description: Instances whose release or user is not on the host yet (in check mode).
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

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import (
    cli,  # noqa: F401 - the kit ships itself: an import is what makes Ansible send a room to the host
    credentials,
    fileset,
    kit,
    overrides,
    precheck,
    systemd,
)
from ansible.module_utils.sglang_kit.problem import ProblemsError


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
            "secrets": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "no_log": False,  # of each one, the content is
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True, "no_log": True},
                },
            },
            "plans": {"type": "list", "elements": "dict", "default": []},
            "user": {"type": "str", "default": "sglang"},
            "enabled": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/opt/sglang"},
            "commands": {"type": "path", "default": "/usr/local/bin"},
            "manifest": {"type": "path", "default": "/var/lib/sglang/files.json"},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = [
        fileset.File(file["path"], file["content"], int(file["mode"], 8), group=file["group"])
        for file in given["files"]
    ]
    wanted += [fileset.File(file["path"], file["content"], 0o600) for file in given["secrets"]]
    wanted += kit.files(given["root"], given["commands"])
    installed = fileset.read_manifest(given["manifest"])
    wanted.append(fileset.manifest(given["manifest"], wanted))
    changes = fileset.compare(wanted, installed)
    gone = systemd.unit_names(change.path for change in changes if change.wanted is None)
    to_enable = systemd.not_enabled(given["enabled"])
    if not module.check_mode:
        complaints = systemd.verify({change.path: change.after for change in changes if change.after})
        if complaints:
            module.fail_json(msg="systemd refuses the units; nothing was changed:\n" + "\n".join(complaints))
    due = precheck.due(given["plans"])
    possible = [plan for plan in due if precheck.possible(plan, given["user"])]
    unchecked = [plan["name"] for plan in due if module.check_mode and plan not in possible]
    checks = precheck.ask([plan for plan in due if plan["name"] not in unchecked], given["user"])
    judged = [overrides.judge(plan, checks[plan["name"]]) for plan in due if plan["name"] in checks]
    refused = [problem for one in judged for problem in one.refused]
    if refused:
        module.fail_json(msg=f"nothing was changed: {ProblemsError(refused)}", checks=checks)
    if not module.check_mode:
        systemd.stop_and_disable(gone)
        fileset.apply(changes)
        if systemd.unit_names(change.path for change in changes):
            systemd.reload()
        systemd.enable(to_enable)
    module.exit_json(
        changed=bool(changes or to_enable),
        changed_paths=[change.path for change in changes],
        stopped=gone,
        checks=checks,
        unchecked=unchecked,
        notes=[
            *(note for one in judged for note in one.notes),
            *(f"{name}: not checked, its release or user is not on this host yet" for name in unchecked),
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
