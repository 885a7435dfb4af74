#!/usr/bin/python
"""Prove that SGLang instances serve what was planned, or say why they never will."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_ready
short_description: Prove that SGLang instances serve what was planned
description:
  - Follows each instance from the journal of its current invocation and over HTTP until it is ready or has
    failed. Ends at the first fatal line, or when a stage passes its time without progress; a stage that
    moves is never ended.
  - Ready means that the pools are allocated, the right instance listens on the planned port with the planned
    arguments and concurrency, its health is good, and one completion and one JSON-schema completion were
    served.
options:
  plans:
    description: Plans of the instances, as the filter P(sglang_plan#filter) makes them.
    type: list
    elements: dict
    required: true
  previous:
    description: >-
      Invocation by instance name that a start has just been asked to replace; nothing of it counts.
    type: dict
    default: {}
attributes:
  check_mode: {description: Observes only, with or without it., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Prove what runs
  sglang_ready:
    plans: "{{ sglang_service_instances | sglang_plan(host) }}"
"""

RETURN = r"""
causes:
  description: One line for every instance that is not ready.
  type: list
  elements: str
  returned: failure
  sample: ["chat: failed in stage weights: a weights file is cut off"]
instances:
  description: Verdict by instance name.
  type: dict
  returned: always
  sample:
    chat:
      state: ready
      stage: serving
      sentence: ""
      allocated: {kv_tokens: 165000, running_requests: 16}
      stages: [{name: weights, begin: 12.1, seconds: 31.0}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import report, watch

ARGUMENTS = {
    "plans": {"type": "list", "elements": "dict", "required": True},
    "previous": {"type": "dict", "default": {}},
}


def main() -> None:
    """Follow, and fail with every cause."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    verdicts = watch.follow(module.params["plans"], module.params["previous"])
    failures = report.failures(verdicts)
    if failures:
        module.fail_json(msg="\n".join(failures), causes=report.causes(verdicts), instances=verdicts)
    module.exit_json(changed=False, instances=verdicts)


if __name__ == "__main__":
    main()
