#!/usr/bin/python
"""Take SGLang instances out of a load balancer, or put them back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_hook
short_description: Take SGLang instances out of a load balancer, or put them back
description:
  - Calls the user's hook of each instance on the host, one after another.
  - Where one cannot be drained, those that were drained before it are put back, and the module fails.
options:
  plans:
    description: >-
      Instances with their hooks; C(name), C(host), C(port), C(drain) and C(undrain) are read. A hook is a
      list of words, a URL, or absent.
    type: list
    elements: dict
    required: true
  when:
    description: Which of the hooks.
    type: str
    choices: [drain, undrain]
    required: true
attributes:
  check_mode: {description: Calls nothing., support: full}
  diff_mode: {description: Changes nothing that it knows., support: none}
  idempotent: {description: Calls each time., support: none}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Take an instance out of the load balancer
  sglang_hook:
    when: drain
    plans:
      - name: chat
        host: 127.0.0.1
        port: 30001
        drain: [/usr/local/bin/lb, drain, "{name}"]
"""

RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import hook

ARGUMENTS = {
    "plans": {"type": "list", "elements": "dict", "required": True},
    "when": {"type": "str", "choices": [hook.DRAIN, hook.UNDRAIN], "required": True},
}


def main() -> None:
    """Call, and fail with what went wrong."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    plans, when = module.params["plans"], module.params["when"]
    wrong = "" if module.check_mode else hook.run(plans, when)
    if wrong:
        module.fail_json(msg=wrong)
    module.exit_json(changed=any(plan.get(when) for plan in plans))


if __name__ == "__main__":
    main()
