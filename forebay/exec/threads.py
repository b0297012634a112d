"""One pool of worker threads for torch's operators and for our kernels.

torch's CPU operators run on OpenMP workers, which spin after each operator so that the next one
starts at once. A second pool (numba's, or Python threads) would fight those spinning workers for
the cores. So our kernels enter the very OpenMP runtime that torch has loaded, through
`GOMP_parallel`, an entry that GCC's and LLVM's runtimes both export.

Importing this module does not import torch: call `prepare_environment()` before anything does,
because the runtime reads its settings once, when it is loaded.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.exec.simd import CompiledKernel

SPIN_ROUNDS = 10_000
"""How long a worker spins before it sleeps: on recent Intel CPUs some 500 microseconds.

That bridges the gaps between the operators of a step. On a quiet 2-core machine a decode step of
32 rows was about 9 % faster than with 3,000 rounds, and 1 to 4 % slower than with 30,000 or more.
But a worker that spins holds a core that another process could use: beside a busy one, 50,000
rounds made a run up to seven times as long, and the runtime's own 300,000 more than ten times.
"""


def prepare_environment() -> bool:
    """Sets how OpenMP workers wait, unless the user has; false when torch is already loaded."""
    if "torch" in sys.modules:
        return False
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_ROUNDS))
        os.environ.setdefault("KMP_BLOCKTIME", "0")
    return True


def available_cores() -> int:
    """Cores this process may run on, which in a container may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def configure_threads(num_threads: int | None = None) -> int:
    """Gives torch's operators and our kernels `num_threads` (default: one a core); answers it.

    Prepares the environment first. Raises ValueError for fewer than one thread.
    """
    count = available_cores() if num_threads is None else num_threads
    if count < 1:
        raise ValueError(f"num_threads is {count}; give at least 1, or leave it out")
    prepare_environment()
    import torch

    torch.set_num_threads(count)
    return count


class ParallelRegion:
    """Calls a kernel once on each worker thread, all with the same address, and waits for all."""

    def __init__(self, kernel: "CompiledKernel") -> None:
        self._call = kernel.ctypes
        self._address = kernel.address
        # Kept, for its machine code is freed with it.
        self._kernel = kernel
        self._fork = _find_openmp_fork()

    def __call__(self, arguments: int, num_threads: int) -> None:
        """Returns when every thread has left the kernel. `arguments` is an address."""
        if num_threads == 1:
            self._call(arguments)
        elif self._fork is not None:
            self._fork(self._address, arguments, num_threads, 0)
        else:
            self._run_on_python_threads(arguments, num_threads)

    def _run_on_python_threads(self, arguments: int, num_threads: int) -> None:
        """Where no OpenMP runtime is found; calls through ctypes hold no interpreter lock."""
        others = [
            threading.Thread(target=self._call, args=(arguments,)) for _ in range(num_threads - 1)
        ]
        for thread in others:
            thread.start()
        self._call(arguments)
        for thread in others:
            thread.join()


def _find_openmp_fork() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel(function, data, num_threads, flags)` of the runtime that torch loaded."""
    import torch

    folder = Path(torch.__file__).parent / "lib"
    for pattern in ("libgomp*", "libomp*", "libiomp5*"):
        for path in sorted(folder.glob(pattern)):
            fork = _load_fork(path)
            if fork is not None:
                return fork
    return None


def _load_fork(path: Path) -> Callable[[int, int, int, int], None] | None:
    # Only the copy that is already in the process has torch's workers. Windows cannot ask so.
    already_loaded = getattr(os, "RTLD_NOLOAD", None)
    if already_loaded is None:
        return None
    try:
        fork = ctypes.CDLL(str(path), mode=already_loaded | os.RTLD_LAZY).GOMP_parallel
    except (OSError, AttributeError):
        return None
    fork.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    fork.restype = None
    return fork
