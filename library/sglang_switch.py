#!/usr/bin/python
"""Put a recorded state of SGLang instances in place, and ask for its start."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_switch
short_description: Put a recorded state of SGLang instances in place, and ask for its start
description:
  - Stops what has to be free first, changes the files of the instances, and asks systemd for their starts
    without waiting for them; M(sglang_ready) follows these.
  - With O(back), sets the instances whose change has failed back to the last state that was proven ready.
options:
  steps:
    description: One batch, as the filter P(sglang_batches#filter) lays them out.
    type: list
    elements: dict
    required: true
  to:
    description:
      - Which state; V(wanted), V(known-good) or the name of one. It becomes the wanted one.
    type: str
    default: wanted
  back:
    description: Sets back instead, and records the failures.
    type: bool
    default: false
  ready:
    description: What M(sglang_ready) returned of those that are ready (C(instances)), for O(back).
    type: dict
    default: {}
  failures:
    description:
      - What it returned of those that failed. With O(back) and none here, all of the batch goes back.
    type: dict
    default: {}
  attempted:
    description: Return value RV(states) of the change that failed.
    type: dict
    default: {}
  group:
    description: Group that may read what was recorded, secrets aside.
    type: str
    default: sglang
  states:
    description: Where the states of the instances are recorded.
    type: path
    default: /var/lib/sglang/instances
attributes:
  check_mode: {description: Is not supported; what would be done follows from the steps., support: none}
  diff_mode: {description: M(sglang_units) has shown the files., support: none}
  idempotent: {description: Restarts each time., support: none}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Restart with what is wanted
  sglang_switch:
    steps: [{name: chat, action: restart, group: [chat]}]
  register: switched
"""

RETURN = r"""
states:
  description: The states now in place, by instance name.
  type: dict
  returned: always
  sample: {chat: 20261129T181502Z-667903be}
plans:
  description: Plans of the instances that start.
  type: list
  elements: dict
  returned: always
previous:
  description: Invocations that the starts replace, by instance name.
  type: dict
  returned: always
  sample: {chat: 5c1ac8ca8c1f4b4d8e2f4a0d3f4a0a11}
stays:
  description: Why an instance could not be set back, by its name.
  type: dict
  returned: always
  sample: {new: no state of it was ever ready}
unrecorded:
  description: Why the failures could not be recorded; empty where they were.
  type: str
  returned: always
  sample: ""
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import state, switch

ARGUMENTS = {
    "steps": {"type": "list", "elements": "dict", "required": True},
    "to": {"type": "str", "default": "wanted"},
    "back": {"type": "bool", "default": False},
    "ready": {"type": "dict", "default": {}},
    "failures": {"type": "dict", "default": {}},
    "attempted": {"type": "dict", "default": {}},
    "group": {"type": "str", "default": "sglang"},
    "states": {"type": "path", "default": state.ROOT},
}


def main() -> None:
    """Change the batch, or set it back."""
    module = AnsibleModule(argument_spec=ARGUMENTS)
    given = module.params
    store = state.Store(given["states"], group=given["group"])
    switched = (
        switch.back(
            store, given["steps"], given["attempted"], ready=given["ready"], failures=given["failures"]
        )
        if given["back"]
        else switch.forward(store, given["steps"], given["to"])
    )
    module.exit_json(changed=True, **switched.as_dict())


if __name__ == "__main__":
    main()
