"""Subprocesses without the seconds that importing torch takes: forks of one process that has imported torch but knows no
accel yet. Each begins with what the end of `import torch` does, under its own environment. What is to be proved about
the import itself, or about leaving the interpreter, needs `helpers.run_python`."""

import atexit
import functools
import json
import pathlib
import subprocess
import tempfile
import textwrap

import helpers

TIMEOUT = 60  # seconds

TEMPLATE = f"""
import json, os, signal, sys, traceback
import torch

def run(job):
    for number, path in enumerate(job["output"], 1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    signal.alarm({TIMEOUT})
    os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ.update(job["env"])
    sys.path[:0] = job["env"].get("PYTHONPATH", "").split(os.pathsep)
    try:
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        sys.argv = ["-c"]
        exec(compile(job["code"], "<string>", "exec"), {{"__name__": "__main__"}})
    except SystemExit as error:
        return error.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@functools.cache
def _template() -> subprocess.Popen:
    command, env = helpers.python_command(TEMPLATE, TORCH_DEVICE_BACKEND_AUTOLOAD=0)
    process = subprocess.Popen(
        command, env=env, cwd=tempfile.gettempdir(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)  # the end of its input ends it
    return process


def run_python(code: str, **env: object) -> subprocess.CompletedProcess:
    """Like `helpers.run_python`; a process that takes longer than TIMEOUT is killed (status -14)."""
    template = _template()
    assert template.stdin is not None and template.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        output = [pathlib.Path(folder, name) for name in ("stdout", "stderr")]
        for path in output:
            path.touch()
        variables = {name: str(value) for name, value in env.items()}
        job = {"code": textwrap.dedent(code), "env": variables, "output": list(map(str, output))}
        template.stdin.write(json.dumps(job) + "\n")
        template.stdin.flush()
        status = int(template.stdout.readline())
        return subprocess.CompletedProcess([], status, *(path.read_text() for path in output))


def run_ok(code: str, **env: object) -> str:
    """Like `helpers.run_ok`."""
    done = run_python(code, **env)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
