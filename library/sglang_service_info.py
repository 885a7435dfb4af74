#!/usr/bin/python
"""Look at the units of SGLang instances."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_service_info
short_description: Look at the units of SGLang instances
description:
  - Reads the state of every unit in one call of C(systemctl), and the fingerprint from the environment of
    the process that runs. C(systemctl show) would tell what the file on disk says instead.
  - Tells of each instance what its process holds, and which of its recorded states is wanted and which
    was the last one proven.
options:
  plans:
    description: Plans of the instances, as the filter P(sglang_plan#filter) returns them.
    type: list
    elements: dict
    required: true
  adopt:
    description: Units and pids of others that a deploy may stop and take over.
    type: list
    elements: str
    default: []
  states:
    description: Where the states of the instances are recorded.
    type: path
    default: /var/lib/sglang/instances
  config_directory:
    description: Where the plans of the last deploy lie.
    type: path
    default: /etc/sglang
attributes:
  check_mode: {description: Only reads., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Look at one instance
  sglang_service_info:
    plans: "{{ sglang_service_instances | sglang_plan(host) }}"
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
      changed: ""
      differs: "--max-running-requests 8 -> 4"
      status: ready
      restarts: 0
      holds: {name: chat, host: 127.0.0.1, port: 30001, nccl_port: 20001, gpus: ["1"], shared: false}
      wanted: 20261129T181502Z-667903be
      known_good: 20261129T181502Z-667903be
leaving:
  description: What instances hold that are installed and have no plan, and whether they run.
  type: list
  elements: dict
  returned: always
  sample:
    - {name: old, unit: sglang-old.service, host: 127.0.0.1, port: 30009, drain: null, runs: true}
refused:
  description: Who else holds what the instances to be started need, and may not be stopped.
  type: list
  elements: str
  returned: always
  sample:
    - >-
      chat: port 30001 on 127.0.0.1: is held by pid 612 (python3 -m sglang.launch_server) of mine.service; end
      it, or let a deploy take it over: sglang_service_adopt: [mine.service]
adopted:
  description: What has to be stopped of that, as C(units) and C(pids).
  type: dict
  returned: always
  sample: {units: [mine.service], pids: []}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import (
    adopt,
    difference,
    present,
    roll,
    state,
    status,
    systemd,
)

ARGUMENTS = {
    "plans": {"type": "list", "elements": "dict", "required": True},
    "adopt": {"type": "list", "elements": "str", "default": []},
    "states": {"type": "path", "default": state.ROOT},
    "config_directory": {"type": "path", "default": "/etc/sglang"},
}


def main() -> None:
    """Read and report."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    plans, given = module.params["plans"], module.params["adopt"]
    wanted = {plan["name"]: plan for plan in plans}
    units = {name: plan["unit"] for name, plan in wanted.items()}
    store = state.Store(module.params["states"])
    installed = status.installed_plans(module.params["config_directory"])
    leaving = [plan for name, plan in installed.items() if name not in units]
    states = systemd.unit_states([*units.values(), *(plan["unit"] for plan in leaving)])

    def look(name: str, unit: str) -> dict[str, Any]:
        seen = states[unit]
        mark = systemd.running_fingerprint(seen.main_pid)
        known = store.running(name, mark)
        return {
            "active": seen.active_state,
            "sub": seen.sub_state,
            "lifecycle": seen.lifecycle,
            "main_pid": seen.main_pid,
            "invocation": seen.invocation,
            "fingerprint": mark,
            "changed": present.changed(wanted[name], seen.main_pid),
            "differs": difference.reason(known["plan"], wanted[name]) if known else "",
            "status": seen.status_text,
            "restarts": seen.restarts,
            "holds": roll.place(known["plan"] if known else installed.get(name)) if seen.main_pid else None,
            "wanted": store.pointed(name, state.WANTED),
            "known_good": store.pointed(name, state.KNOWN_GOOD),
        }

    instances = {name: look(name, unit) for name, unit in units.items()}
    actions = {one["name"]: one["action"] for one in roll.actions(plans, instances)}
    starting = [plan for plan in plans if actions[plan["name"]] in roll.STARTS]
    ours = {*units.values(), *(plan["unit"] for plan in leaving)}
    found = adopt.holders(plans, starting, ours)
    foreign = {one.unit for one in found}
    module.exit_json(
        instances=instances,
        leaving=[
            {**{key: plan.get(key) for key in roll.PLACE}, "runs": bool(states[plan["unit"]].main_pid)}
            for plan in leaving
        ],
        refused=[str(problem) for problem in adopt.refused(found, given)],
        adopted={
            "units": adopt.units(given, ours - foreign),
            "pids": [one.pid for one in found if str(one.pid) in given],
        },
    )


if __name__ == "__main__":
    main()
