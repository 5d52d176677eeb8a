"""The solver: facts in, a plan with its reasons out.

Pure and standard library only: no file, no clock, no environment. ``solve(machine, model, intent)``
returns a :class:`~solver.types.Plan` that fits, or an :class:`~solver.types.Infeasible` that says
what came nearest and what would cure it.
"""
