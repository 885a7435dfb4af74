#!/usr/bin/python
"""Measure what a running SGLang instance serves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_benchmark
short_description: Measure what a running SGLang instance serves
description:
  - Runs the release's own client (C(sglang.bench_serving)) against an instance on this host, as the account
    of the instances and without GPUs.
  - Never sends more requests at once than the engine serves; such a level is skipped, with the reason.
options:
  plan:
    description: Plan of the instance, as the filter P(sglang_plan#filter) returns it.
    type: dict
    required: true
  concurrency:
    description: Requests at once.
    type: int
    required: true
  load:
    description: What is sent; C(requests_per_client), C(input_tokens), C(output_tokens) and C(seed).
    type: dict
    required: true
  user:
    description: Account that measures.
    type: str
    default: sglang
  timeout_seconds:
    description: How long one level may take.
    type: int
    default: 3600
attributes:
  check_mode: {description: Measures nothing., support: none}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Measures each time., support: none}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Measure four clients
  sglang_benchmark:
    plan: "{{ plan }}"
    concurrency: 4
    load: {requests_per_client: 4, input_tokens: 512, output_tokens: 128, seed: 1}
"""

RETURN = r"""
result:
  description: V(measured), V(skipped) or V(failed).
  type: str
  returned: always
  sample: measured
effective:
  description: How many requests the engine serves at once, where it tells.
  type: int
  returned: always
  sample: 16
measured:
  description: What the client measured; times in milliseconds, except C(duration) in seconds.
  type: dict
  returned: when measured
  sample: {completed: 16, output_throughput: 159.1, median_ttft_ms: 81.2, median_tpot_ms: 12.5}
cause:
  description: Cause of the failure, as the catalogue of causes names it; empty where it is not the engine's.
  type: str
  returned: when failed
  sample: gpu-out-of-memory
reason:
  description: Why there is no result.
  type: str
  returned: when skipped or failed
  sample: "the engine serves 4 requests at once, 16 were asked for"
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import measure
from ansible.module_utils.sglang_kit.benchmark import Load

ARGUMENTS = {
    "plan": {"type": "dict", "required": True},
    "concurrency": {"type": "int", "required": True},
    "load": {"type": "dict", "required": True},
    "user": {"type": "str", "default": "sglang"},
    "timeout_seconds": {"type": "int", "default": 3600},
}


def main() -> None:
    """Measure and report."""
    module = AnsibleModule(argument_spec=ARGUMENTS)
    given = dict(module.params)
    load = Load(**given.pop("load"))
    module.exit_json(changed=False, **measure.level(given.pop("plan"), load, **given))


if __name__ == "__main__":
    main()
