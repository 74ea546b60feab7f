"""Runs inside vLLM's workers: prepares each of them before its first step.

`launch.py` names `Worker`, or a subclass, as the worker extension. Every worker imports the extension before
it loads the model.

Linux lets a process use AMX tiles only after the process has asked for them. vLLM's attention on the CPU uses
tiles for bfloat16 without asking, so the kernel would end the worker with SIGILL. This module asks for them.
The permission applies to the whole process, including threads that already run.

tvm_ffi, which vLLM imports, replaces faulthandler's handler of SIGSEGV with its own. That handler names no
Python call, so this module restores faulthandler.
"""

from __future__ import annotations

import faulthandler
import sys

import torch


class Worker:
    """The worker extension; importing it prepares the process."""


def ask_for_tiles() -> bool:
    """Ask the kernel for AMX tiles. Return whether this process may use them, False without such hardware."""
    return torch.cpu._init_amx()


def name_calls() -> None:
    """Make a fatal signal print the running Python call of each thread to standard error."""
    faulthandler.disable()  # without this, `enable` would not replace handlers that libraries have set since
    faulthandler.enable(sys.__stderr__ or 2)


ask_for_tiles()
name_calls()
