#!/usr/bin/python
"""Tell which states SGLang instances have had, and what became of them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_history
short_description: Tell which states SGLang instances have had, and what became of them
description:
  - Reads the recorded states of instances, also of those that have left the host, and tells where a rollback
    would go.
options:
  name:
    description: Name of one instance; all of them by default.
    type: str
  states:
    description: Where the states of the instances are recorded.
    type: path
    default: /var/lib/sglang/instances
attributes:
  check_mode: {description: Only reads., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Look back
  sglang_history:
  register: history
"""

RETURN = r"""
instances:
  description: History by instance name.
  type: dict
  returned: always
  sample:
    chat:
      wanted: 20261129T181502Z-667903be
      known_good: 20261129T101502Z-0123abcd
      running: 20261129T101502Z-0123abcd
      target: 20261129T101502Z-0123abcd
      altered: ""
      runs: {name: chat, host: 127.0.0.1, port: 30001, drain: null}
      states:
        - id: 20261129T181502Z-667903be
          made: "2026-11-29T18:15:02+00:00"
          by: {user: ann, controller: desk, commit: 0123abcd4567}
          results: [{result: failed, cause: weights-damaged}]
lines:
  description: The same for people.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import history, state, systemd
from ansible.module_utils.sglang_kit.problem import no_instance

ARGUMENTS = {"name": {"type": "str"}, "states": {"type": "path", "default": state.ROOT}}


def main() -> None:
    """Read and report."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    store = state.Store(module.params["states"])
    known = store.names()
    wanted = module.params["name"]
    if wanted and wanted not in known:
        module.fail_json(msg=str(no_instance(wanted, known)))
    names = [wanted] if wanted else known
    units = {name: f"sglang-{name}.service" for name in names}
    states = systemd.unit_states(list(units.values()))
    found = {
        name: history.of_instance(store, name, systemd.running_fingerprint(pid), pid)
        for name, unit in units.items()
        for pid in [states[unit].main_pid]
    }
    lines = [line for name, one in found.items() for line in (*history.lines(name, one), "")]
    module.exit_json(instances=found, lines=lines)


if __name__ == "__main__":
    main()
