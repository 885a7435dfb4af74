#!/usr/bin/python
"""Look at the units of SGLang instances."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service_info
short_description: Look at the units of SGLang instances
description:
  - Reads the state of every unit in one call of C(systemctl), and the fingerprint from the environment of
    the process that runs. C(systemctl show) would tell what the file on disk says instead.
options:
  units:
    description: Unit by instance name.
    type: dict
    required: true
attributes:
  check_mode: {description: Only reads., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Look at one instance
  sglang_service_info:
    units:
      chat: sglang-chat.service
  register: seen
"""

RETURN = r"""
instances:
  description: State by instance name.
  type: dict
  returned: always
  sample:
    chat:
      active: active
      sub: running
      lifecycle: alive
      main_pid: 4711
      invocation: 5c1ac8ca8c1f4b4d8e2f4a0d3f4a0a11
      fingerprint: 667903beab97f70c
      status: ready
      restarts: 0
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import systemd

ARGUMENTS = {"units": {"type": "dict", "required": True}}


def main() -> None:
    """Read and report."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    units = module.params["units"]
    states = systemd.unit_states(list(units.values()))
    module.exit_json(
        instances={
            name: {
                "active": states[unit].active_state,
                "sub": states[unit].sub_state,
                "lifecycle": states[unit].lifecycle,
                "main_pid": states[unit].main_pid,
                "invocation": states[unit].invocation,
                "fingerprint": systemd.running_fingerprint(states[unit].main_pid),
                "status": states[unit].status_text,
                "restarts": states[unit].restarts,
            }
            for name, unit in units.items()
        }
    )


if __name__ == "__main__":
    main()
