#!/usr/bin/python
"""Install the files of all instances of a host as one set."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_units
short_description: Install the units and files of all SGLang instances of a host as one set
description:
  - Compares the wanted files with the host, stages the ones that differ, has C(systemd-analyze verify)
    judge the units, and only then renames all of them into place.
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
  enabled:
    description: Units that come up at boot.
    type: list
    elements: str
    default: []
  root:
    description: Directory of the kit.
    type: path
    default: /opt/sglang
  manifest:
    description: Where the names of the installed files are kept.
    type: path
    default: /var/lib/sglang/files.json
attributes:
  check_mode: {description: Predicts the same changes; nothing is written., support: full}
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
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import (
    cli,  # noqa: F401 - the kit ships itself: an import is what makes Ansible send a room to the host
    fileset,
    kit,
    systemd,
)


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
            "enabled": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/opt/sglang"},
            "manifest": {"type": "path", "default": "/var/lib/sglang/files.json"},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = [
        fileset.File(file["path"], file["content"], int(file["mode"], 8), group=file["group"])
        for file in given["files"]
    ]
    wanted += kit.files(given["root"])
    installed = fileset.read_manifest(given["manifest"])
    wanted.append(fileset.manifest(given["manifest"], wanted))
    changes = fileset.compare(wanted, installed)
    gone = systemd.unit_names(change.path for change in changes if change.wanted is None)
    to_enable = systemd.not_enabled(given["enabled"])
    if not module.check_mode:
        complaints = systemd.verify({change.path: change.after for change in changes if change.after})
        if complaints:
            module.fail_json(msg="systemd refuses the units; nothing was changed:\n" + "\n".join(complaints))
        systemd.stop_and_disable(gone)
        fileset.apply(changes)
        if systemd.unit_names(change.path for change in changes):
            systemd.reload()
        systemd.enable(to_enable)
    module.exit_json(
        changed=bool(changes or to_enable),
        changed_paths=[change.path for change in changes],
        stopped=gone,
        diff=[
            {
                "before_header": change.path,
                "after_header": change.path,
                "before": change.before or "",
                "after": change.after or "",
            }
            for change in changes
            if not change.path.startswith(f"{given['root']}/kits/")  # the link to them tells enough
        ],
    )


if __name__ == "__main__":
    main()
