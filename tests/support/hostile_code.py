"""Code with which a model may attack the server that judges it, and environments whose tools run code."""

from __future__ import annotations

HOSTILE = """
import json, os, signal, sys
import _ctypes

def call(name, *arguments):
    function = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)
    return _ctypes.call_cdeclfunction(function, arguments)

def refused(trial):
    try:
        return not trial()
    except OSError:
        return True

def opened(path):
    os.close(os.open(path, os.O_RDONLY))
    return True

def attached(pid):
    if call("ptrace", 16, pid, 0, 0) != 0:  # PTRACE_ATTACH
        return False
    os.waitpid(pid, 0)
    call("ptrace", 17, pid, 0, 0)
    return True

def taken(pid):
    process = call("syscall", 434, pid, 0)  # pidfd_open
    got = any(call("syscall", 438, process, number, 0) >= 0 for number in range(64))  # pidfd_getfd
    if process >= 0:
        os.close(process)
    return got

target = int(sys.argv[1])
got = [part for part in ("mem", "environ", "maps", "auxv", "stack", "syscall")
       if not refused(lambda: opened(f"/proc/{target}/{part}"))]
got += [part for part in ("cwd", "root", "exe") if not refused(lambda: os.readlink(f"/proc/{target}/{part}"))]
if not refused(lambda: os.listdir(f"/proc/{target}/fd")):
    got.append("fd")
if attached(target):
    got.append("ptrace")
if taken(target):
    got.append("descriptors")
print(json.dumps({
    "got": got,
    "seen": os.path.exists(f"/proc/{target}"),
    "variables": [name for name in os.environ if name.startswith("HEADWAY_")],
    "files": [number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")],
    "users": [os.getuid(), os.geteuid()],
    "processes": [pid for pid in os.listdir("/proc") if pid.isdigit()],
}))
"""

CAREFUL = f"""
import os, subprocess, sys
from headway_sandbox.environment import Environment, Observation, tool, user

HOSTILE = {HOSTILE!r}

class Careful(Environment):
    def reset(self, row, seed):
        self.answer = row["answer"]
        return Observation([user("?")])

    @tool
    def code(self) -> str:
        '''Runs code as the server's own user.'''
        command = [sys.executable, "-S", "-c", HOSTILE, str(os.getpid())]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout or done.stderr

    @tool
    def own(self) -> dict:
        '''What the server still may do to itself.'''
        with open("/proc/self/status") as file:
            status = file.read()
        with open("/proc/self/maps") as file:
            maps = file.read()
        return {{"status": bool(status), "maps": bool(maps), "fd": len(os.listdir("/proc/self/fd")) > 2}}

    def reward(self, transcript):
        return float(transcript.answer == self.answer)

    score = reward
"""

WALLED = """
import os
from headway_sandbox import runner
from headway_sandbox.environment import Environment, Observation, tool, user

class Walled(Environment):
    def reset(self, row, seed):
        self.answer = row["answer"]
        return Observation([user("?")])

    @tool
    def python(self, code: str, argument: str = "") -> dict:
        '''Run a program.'''
        done = runner.run(["python3", "-S", "-", argument], stdin=code, timeout=20)
        return {"code": done.code, "out": done.stdout, "error": done.stderr}

    @tool
    def pid(self) -> int:
        '''The server's own.'''
        return os.getpid()

    @tool
    def fetch(self, path: str) -> str:
        '''Read a file of the runner.'''
        try:
            return repr(runner.get(path, 1000))
        except OSError as error:
            return f"{type(error).__name__} {error.strerror}"

    def reward(self, transcript):
        alive = runner.run(["python3", "-S", "-c", ALIVE]).stdout.split()
        return float(transcript.answer == self.answer and not alive)

    score = reward

ALIVE = '''
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) not in (1, os.getpid()):
        print(pid)
'''
"""

STAYS = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("left")
"""
