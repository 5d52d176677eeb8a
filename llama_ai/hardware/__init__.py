"""What the machine is: read once, from a root that may be a recording of another machine.

``detect.detect`` gives :class:`~llama_ai.hardware.facts.HardwareFacts`; ``budgets.budgets`` says
how much memory a plan may use. Live metrics are not here (``llama_ai.monitor`` has them).
"""
