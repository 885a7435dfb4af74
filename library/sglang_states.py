#!/usr/bin/python
"""Bring the states of SGLang instances for a comparison."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_states
short_description: Bring the states of SGLang instances for a comparison
description:
  - Reads recorded states and what runs now, and completes what the inventory wants with what a start would
    meet on this host (driver, kernel, model files). The filter P(sglang_difference#filter) compares them.
  - Of secrets it returns digests only.
options:
  name:
    description: Name of the instance.
    type: str
    required: true
  states:
    description:
      - Which states are wanted; C(inventory), C(running), C(installed) (what the last deploy asked for),
        C(known-good), or the name of a recorded state.
    type: list
    elements: str
    required: true
  host:
    description: Name of this host in the inventory.
    type: str
    required: true
  known:
    description: Names of the host's instances in the inventory; it may have had others besides.
    type: list
    elements: str
    default: []
  plan:
    description: The inventory's plan of the instance, as the filter P(sglang_plan#filter) returns it.
    type: dict
  unit:
    description: The text of the unit that belongs to O(plan).
    type: str
    default: ""
  secrets:
    description: The inventory's secrets, from the filter P(sglang_secrets#filter).
    type: list
    elements: dict
    default: []
    options:
      path: {description: Absolute path., type: path, required: true}
      content: {description: The secret., type: str, required: true}
  directory:
    description: Where the states lie.
    type: path
    default: /var/lib/sglang/instances
  config_directory:
    description: Where the installed plans lie.
    type: path
    default: /etc/sglang
attributes:
  check_mode: {description: Only reads., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: What runs, and what ran well before
  sglang_states:
    name: chat
    states: [running, known-good]
    host: "{{ inventory_hostname }}"
  register: found
"""

RETURN = r"""
views:
  description: The states that there are, by the word that asked for them.
  type: dict
  returned: always
  sample:
    known-good:
      title: known-good
      of: 20261129T101500Z-667903be, deployed 2026-11-29T10:15:00+00:00
      plan: {name: chat}
missing:
  description: The ones that there are not, each with the reason.
  type: list
  elements: str
  returned: always
  sample: ["chat on ct200: does not run"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import credentials, present
from ansible.module_utils.sglang_kit.problem import ProblemsError

ARGUMENTS = {
    "name": {"type": "str", "required": True},
    "states": {"type": "list", "elements": "str", "required": True},
    "host": {"type": "str", "required": True},
    "known": {"type": "list", "elements": "str", "default": []},
    "plan": {"type": "dict"},
    "unit": {"type": "str", "default": ""},
    "secrets": credentials.ARGUMENT,
    "directory": {"type": "path", "default": "/var/lib/sglang/instances"},
    "config_directory": {"type": "path", "default": "/etc/sglang"},
}


def main() -> None:
    """Read and report."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = dict(module.params)
    secrets = {one["path"]: one["content"] for one in given.pop("secrets")}
    try:
        views, missing = present.views(**given, secrets=secrets)
    except ProblemsError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, views=views, missing=missing)


if __name__ == "__main__":
    main()
