"""One thread a process: the tensors of tests are too small to share out, and threads that wait would only burn."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here and in the processes that tests start
