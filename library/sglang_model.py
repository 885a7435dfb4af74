#!/usr/bin/python
"""Bring models from a hub to a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_model
short_description: Bring models from a Hugging Face hub to a host
description:
  - Fetches each model beside its place, checks every file against what the hub says of it and the model
    against its own index and headers, and only then gives it its name.
  - A download that was interrupted goes on where it ended. A model that is there is not asked for again,
    also where its revision is a branch that has moved.
  - Downloads follow the task's environment.
options:
  downloads:
    description: The models.
    type: list
    elements: dict
    required: true
    options:
      path: {description: Directory of the model on the host., type: path, required: true}
      repository: {description: Its repository on the hub., type: str, required: true}
      revision: {description: "A commit, tag or branch.", type: str, default: main}
      include: {description: Patterns of the wanted files; all where empty., type: list, elements: str}
      exclude: {description: Patterns of unwanted ones., type: list, elements: str}
  python:
    description: >-
      A Python that has huggingface_hub, as every release of SGLang. Without it nothing is fetched, and
      RV(due) says what would be.
    type: path
  endpoint:
    description: URL of the hub; that of Hugging Face where empty.
    type: str
    default: ""
  token:
    description: Token of an account that may read the models.
    type: str
    default: ""
attributes:
  check_mode: {description: Predicts the same change; nothing is fetched., support: full}
  diff_mode: {description: Shows what stands in each place before and after., support: full}
  idempotent: {description: A second run changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Bring a model
  sglang_model:
    downloads: [{path: /srv/models/qwen3-8b, repository: Qwen/Qwen3-8B}]
    python: /opt/sglang/current/bin/python
"""

RETURN = r"""
due:
  description: Directories of the models that were not there.
  type: list
  elements: str
  returned: always
  sample: [/srv/models/qwen3-8b]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import model_store
from ansible.module_utils.sglang_kit.problem import ProblemsError

ARGUMENTS = {
    "downloads": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "path": {"type": "path", "required": True},
            "repository": {"type": "str", "required": True},
            "revision": {"type": "str", "default": "main"},
            "include": {"type": "list", "elements": "str"},
            "exclude": {"type": "list", "elements": "str"},
        },
    },
    "python": {"type": "path"},
    "endpoint": {"type": "str", "default": ""},
    "token": {"type": "str", "default": "", "no_log": True},
}


def main() -> None:
    """Compare, and fetch what is not there."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    wanted = model_store.downloads(given["downloads"])
    due = [one for one in wanted if not model_store.is_complete(one)]
    diff = {
        "before": "".join(f"{one.path}: {model_store.described(one)}\n" for one in wanted),
        "after": "".join(f"{one.path}: {one}\n" for one in wanted),
    }
    if given["python"] and not module.check_mode:
        hub = model_store.Hub(given["python"], given["endpoint"], given["token"])
        try:
            for one in due:
                model_store.fetch(one, hub)
        except ProblemsError as error:
            module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(due and given["python"]),
        due=[one.path for one in due],
        diff=diff if given["python"] else {},
    )


if __name__ == "__main__":
    main()
