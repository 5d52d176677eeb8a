"""The kernel parameters that give the GPU its memory: read, wanted, planned, applied, verified.

The modules from ``cmdline`` to ``helper`` are standard library only and know nothing of the rest of
the application but its error classes: ``bundle`` joins them into ``scripts/kernel-params``, the
single file that runs under sudo. The unprivileged commands use the same modules from here, so there
is one implementation, and a test fails when the file and the modules differ.
"""
