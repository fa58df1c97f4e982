"""``python -m trtllm_hpc`` is ``trtllm-hpc``."""

from trtllm_hpc.cli import main

main()
