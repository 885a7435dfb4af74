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
  - An action plugin of the same name runs it step by step, shows each stage while it lasts, and keeps the
    evidence of failures on the controller.
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
  stepwise:
    description: >-
      Returns as soon as there is something to say, without failing; the action plugin sets it.
    type: bool
    default: false
  bookmarks:
    description: Where the step before has left off, from its return value of this name.
    type: dict
    default: {}
  artifacts_dir:
    description: >-
      Directory on the controller below which the evidence of failures is kept; relative to the playbook.
    type: path
    default: ../artifacts
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
instances:
  description: Verdict by instance name; where something has failed, of those that are ready.
  type: dict
  returned: always
  sample:
    chat:
      state: ready
      stage: serving
      sentence: ""
      allocated: {kv_tokens: 165000, running_requests: 16}
      stages: [{name: weights, begin: 12.1, seconds: 31.0}]
failures:
  description: >-
    Of every instance that is not ready its state, phase and cause, what to do, and where the evidence lies on
    the controller; as the module returns it, the explanation and the evidence themselves.
  type: dict
  returned: failure, and in steps
  sample:
    chat:
      state: failed
      phase: weights
      cause: weights-damaged
      sentence: "model-00001.safetensors is cut off"
      remedy: "copy it again"
      saved: /home/me/sglang/artifacts/failures/ct200/chat/2026-11-29T16-40-12Z
said:
  description: Lines that tell the progress.
  type: list
  elements: str
  returned: in steps
  sample: ["chat: 0:14 weights (last time 0:31)"]
bookmarks:
  description: Where to go on with the instances that are neither ready nor failed yet, by name.
  type: dict
  returned: in steps
  sample: {chat: {invocation: 5c1ac8ca8c1f4b4d8e2f4a0d3f4a0a11, shown: 3}}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import report, watch, why
from ansible.module_utils.sglang_kit.readiness import Verdict

ARGUMENTS = {
    "plans": {"type": "list", "elements": "dict", "required": True},
    "previous": {"type": "dict", "default": {}},
    "stepwise": {"type": "bool", "default": False},
    "bookmarks": {"type": "dict", "default": {}},
    "artifacts_dir": {"type": "path", "default": "../artifacts"},
}


def main() -> None:
    """Follow, and fail with every cause."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    asked = module.params
    seen = watch.follow(
        asked["plans"], asked["previous"], bookmarks=asked["bookmarks"], stepwise=asked["stepwise"]
    )
    failures = {
        name: {"text": why.as_text(Verdict.from_dict(seen.instances[name])), "files": files}
        for name, files in seen.files.items()
    }
    result = {"changed": False, "instances": seen.instances, "failures": failures, "said": seen.said}
    if failures and not asked["stepwise"]:
        module.fail_json(msg="; ".join(report.causes(seen.instances)), **result)
    module.exit_json(bookmarks=seen.bookmarks, **result)


if __name__ == "__main__":
    main()
