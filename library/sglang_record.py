#!/usr/bin/python
"""Record what was proven of SGLang instances."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_record
short_description: Record what was proven of SGLang instances
description:
  - Notes with each state what became of its start. One that was proven ready is the known-good one from then
    on, to which a change that fails goes back.
options:
  states:
    description: The state in place, by instance name.
    type: dict
    required: true
  verdicts:
    description: What M(sglang_ready) returned of those to record.
    type: dict
    required: true
  result:
    description: What to record of those that are ready.
    type: str
    choices: [ready, rolled_back]
    default: ready
  group:
    description: Group that may read what is recorded.
    type: str
    default: sglang
  directory:
    description: Where the states of the instances are recorded.
    type: path
    default: /var/lib/sglang/instances
attributes:
  check_mode: {description: Records nothing., support: full}
  diff_mode: {description: No file of an instance changes., support: none}
  idempotent: {description: Adds a result each time., support: none}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Record a proof
  sglang_record:
    states: "{{ switched.states }}"
    verdicts: "{{ proof.instances }}"
"""

RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import state, switch

ARGUMENTS = {
    "states": {"type": "dict", "required": True},
    "verdicts": {"type": "dict", "required": True},
    "result": {"type": "str", "choices": [state.READY, state.ROLLED_BACK], "default": state.READY},
    "group": {"type": "str", "default": "sglang"},
    "directory": {"type": "path", "default": state.ROOT},
}


def main() -> None:
    """Record."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    if not module.check_mode:
        store = state.Store(given["directory"], group=given["group"])
        switch.record(store, given["states"], given["verdicts"], given["result"])
    module.exit_json(changed=bool(given["verdicts"]))


if __name__ == "__main__":
    main()
