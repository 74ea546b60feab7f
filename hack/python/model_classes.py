"""Lets vLLM inspect the model class of tests and demos once, and stores the result for this machine.

    model_classes.py FOLDER     FOLDER is vLLM's cache, `VLLM_CACHE_ROOT`

If vLLM finds no stored result, it inspects the class in a separate process, which takes seconds of a core.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

CLASS = "Qwen3ForCausalLM"


def main(folder: str) -> None:
    """Inspect the class and write the result below `folder`, unless the result exists."""
    os.environ |= {"VLLM_CACHE_ROOT": folder, "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm.model_executor.models import registry

    # vLLM inspects classes in a separate process, so that CUDA is not initialized in this one. Here CUDA is
    # not used, so inspect in this process.
    registry._run_in_subprocess = lambda inspect: inspect()
    registry.ModelRegistry.models[CLASS].inspect_model_cls()
    for file in (Path(folder) / "modelinfos").iterdir():
        file.chmod(0o644)  # pods read the file as another user


if __name__ == "__main__":
    main(sys.argv[1])
