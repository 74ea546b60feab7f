"""Runs inside vLLM's workers: what each of them needs before its first step.

`launch.py` names `Worker`, or a class made from it, as the worker extension. Every worker imports it before
it loads the model.

Linux lets a process use AMX tiles only after the process has asked for them. vLLM's attention on the CPU uses
tiles for bfloat16 without asking, and the kernel ends the worker with SIGILL. The permission holds for the
whole process, also for threads that run already.

tvm_ffi, which vLLM imports, replaces faulthandler's handler of SIGSEGV by its own. That one names no Python
call, so faulthandler is put back.
"""

from __future__ import annotations

import faulthandler
import sys

import torch


class Worker:
    """The worker extension; importing it prepares the process."""


def ask_for_tiles() -> bool:
    """Ask the kernel for AMX tiles; whether this process may use them. False where the processor has none."""
    return torch.cpu._init_amx()


def name_calls() -> None:
    """Have a signal that kills this process name the Python call in which it came, on standard error."""
    faulthandler.disable()  # enabling what is enabled already would leave the handlers of others
    faulthandler.enable(sys.__stderr__ or 2)


ask_for_tiles()
name_calls()
