#!/usr/bin/python
"""Look at a host once and judge whether a deploy may begin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_host_info
short_description: Look at a host once and judge whether SGLang can be deployed on it
description:
  - Gathers what a deploy needs to know (systemd, C library, Python interpreters, packages, directories,
    NVIDIA driver, GPUs and the processes on them, CUDA toolkits) in one round trip.
  - Judges all of it at once and returns every reason why a deploy must not begin; it does not fail by itself.
options:
  accelerator:
    description: What the host serves with; V(auto) follows what the driver shows.
    type: str
    choices: [auto, none, nvidia]
    default: auto
  gpu_instances:
    description: Names of the instances that ask for GPUs.
    type: list
    elements: str
    default: []
  gpu_count:
    description: Number of GPUs that the inventory declares.
    type: int
  engine_version:
    description: SGLang version to be installed; without it the Python of every supported version will do.
    type: str
    default: ""
  allow_untested:
    description: Accept a version that is not in the table of supported ones.
    type: bool
    default: false
  root:
    description: Directory of the product on the host; C(releases) below it is one of O(directories).
    type: path
    default: /opt/sglang
  lock_sha256:
    description: The lock of the release; where this release is complete, nothing needs to be installed.
    type: str
    default: ""
  python:
    description: The interpreter of new releases, where the user chose one.
    type: str
    default: ""
  cuda_home:
    description: The CUDA toolkit, where the user chose one.
    type: str
    default: ""
  require_nvcc:
    description: Whether a GPU host must have C(nvcc).
    type: bool
    default: true
  manage_packages:
    description: Whether missing packages will be installed; otherwise they are a reason to refuse.
    type: bool
    default: true
  packages:
    description: OS packages that must be there.
    type: list
    elements: str
    default: []
  user:
    description: The account of the instances.
    type: str
    default: sglang
  group:
    description: Its group.
    type: str
    default: sglang
  directories:
    description: The directories that must be there.
    type: list
    elements: dict
    required: true
    options:
      path: {description: Absolute path., type: path, required: true}
      owner: {description: Name of the owner., type: str, default: root}
      group: {description: Name of the group., type: str, default: root}
      mode: {description: Mode in octal digits., type: str, default: "0755"}
  uv_cache:
    description: The one of O(directories) that holds uv's cache.
    type: path
    required: true
  brought:
    description: Bytes that are copied to the host or unpacked there to build the release, by directory.
    type: dict
    default: {}
  kernel_cache:
    description: The one of O(directories) that holds compiled kernels.
    type: path
    required: true
attributes:
  check_mode: {description: Reads only., support: full}
  diff_mode: {description: Changes nothing., support: none}
  idempotent: {description: Changes nothing., support: full}
author: The sglang-metal authors
"""

EXAMPLES = r"""
- name: Look at the host
  sglang_host_info:
    engine_version: "0.5.23"
    packages: [libnuma1, gcc]
    directories: [{path: /opt/sglang/releases}, {path: /opt/sglang/uv-cache}, {path: /var/cache/sglang}]
    uv_cache: /opt/sglang/uv-cache
    kernel_cache: /var/cache/sglang
  register: sglang_host_info
"""

RETURN = r"""
problems:
  description: Every reason why a deploy must not begin; empty where it may.
  type: list
  elements: str
  returned: always
  sample: ["host: glibc: is 2.31, and the engine's wheels need 2.34"]
accelerator:
  description: What the host serves with.
  type: str
  returned: always
  sample: nvidia
python:
  description: The interpreter of new releases; empty where none serves.
  type: str
  returned: always
  sample: /usr/bin/python3.11
paths:
  description: What the units get as C(cuda_home), C(path) and C(library_path).
  type: dict
  returned: always
  sample: {cuda_home: /usr/local/cuda, path: "/usr/local/cuda/bin:/usr/bin:/bin", library_path: ""}
missing:
  description: Packages, directories, user and group that a deploy will make or change.
  type: dict
  returned: always
  sample:
    packages: [libnuma1]
    directories: [{path: /srv/models, owner: root, group: root, mode: "0755"}]
    user: false
    group: false
host:
  description: Everything that was seen. Memory is in bytes, versions are pairs.
  type: dict
  returned: always
  contains:
    gpus:
      description: Index, UUID, name, compute capability, total and free memory of each GPU.
      type: list
      elements: dict
      sample:
        - index: 0
          uuid: GPU-801ccd96-2bce-386d-e5db-516af698cdc4
          name: NVIDIA H200
          compute_capability: "9.0"
          memory_total_bytes: 150754820096
          memory_free_bytes: 150109945856
    processes:
      description: Processes that hold GPU memory; what is empty cannot be seen.
      type: list
      elements: dict
      sample:
        - gpu: 0
          pid: 559
          memory_bytes: 4934598656
          unit: other.service
          command: python3 serve.py
          ancestors: [551, 1]
    memory_total_bytes:
      description: Main memory.
      type: int
      sample: 540955832320
    driver:
      description: Version of the NVIDIA driver; empty without one.
      type: str
      sample: 580.159.04
    cuda:
      description: Newest CUDA that the driver serves.
      type: list
      elements: int
      sample: [13, 0]
    container:
      description: Kind of container that the host is, or V(none).
      type: str
      sample: none
"""

import dataclasses

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_kit import engine, gates, release, survey
from ansible.module_utils.sglang_kit.problem import ProblemsError

ARGUMENTS = {
    "accelerator": {"type": "str", "choices": ["auto", "none", "nvidia"], "default": "auto"},
    "gpu_instances": {"type": "list", "elements": "str", "default": []},
    "gpu_count": {"type": "int"},
    "engine_version": {"type": "str", "default": ""},
    "allow_untested": {"type": "bool", "default": False},
    "root": {"type": "path", "default": "/opt/sglang"},
    "lock_sha256": {"type": "str", "default": ""},
    "python": {"type": "str", "default": ""},
    "cuda_home": {"type": "str", "default": ""},
    "require_nvcc": {"type": "bool", "default": True},
    "manage_packages": {"type": "bool", "default": True},
    "packages": {"type": "list", "elements": "str", "default": []},
    "user": {"type": "str", "default": "sglang"},
    "group": {"type": "str", "default": "sglang"},
    "directories": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "path": {"type": "path", "required": True},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
            "mode": {"type": "str", "default": "0755"},
        },
    },
    "uv_cache": {"type": "path", "required": True},
    "kernel_cache": {"type": "path", "required": True},
    "brought": {"type": "dict", "default": {}},
}


def main() -> None:
    """Look, judge, answer."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    wanted = module.params
    root = wanted["root"]
    problems = []
    python = {}
    if wanted["engine_version"]:
        try:
            facts = engine.facts(wanted["engine_version"], allow_untested=wanted["allow_untested"])
            python = {"python_first": facts.python_first, "python_last": facts.python_last}
        except ProblemsError as unknown:
            problems += unknown.problems
    needs = gates.Needs(
        accelerator=wanted["accelerator"],
        gpu_instances=tuple(wanted["gpu_instances"]),
        gpu_count=wanted["gpu_count"],
        engine_version=wanted["engine_version"],
        python=wanted["python"],
        cuda_home=wanted["cuda_home"],
        require_nvcc=wanted["require_nvcc"],
        manage_packages=wanted["manage_packages"],
        release_installed=release.is_complete(
            root, release.Release(wanted["engine_version"], wanted["lock_sha256"])
        ),
        releases=f"{root}/releases",
        uv_cache=wanted["uv_cache"],
        kernel_cache=wanted["kernel_cache"],
        brought=wanted["brought"],
        **python,
    )
    seen = survey.survey(
        user=wanted["user"],
        group=wanted["group"],
        packages=wanted["packages"],
        directories=[directory["path"] for directory in wanted["directories"]] + list(wanted["brought"]),
        python=wanted["python"],
        cuda_home=wanted["cuda_home"],
    )
    for warning in gates.warnings(seen, needs):
        module.warn(warning)
    module.exit_json(
        changed=False,
        problems=[str(problem) for problem in [*problems, *gates.gates(seen, needs)]],
        accelerator=gates.accelerator(seen, needs.accelerator),
        python=gates.choose_python(seen, needs),
        paths=dataclasses.asdict(gates.unit_paths(seen, needs)),
        missing=gates.missing(seen, wanted["directories"], user=wanted["user"], group=wanted["group"]),
        host=dataclasses.asdict(seen),
    )


if __name__ == "__main__":
    main()
