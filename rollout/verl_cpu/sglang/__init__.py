"""SGLang on a machine without a GPU: importable, as a server of its own, and as verl's rollout.

Imported only where it is asked for: by `VERL_PLATFORM=cpu` with `actor_rollout_ref.rollout.name=sglang`, or by
`python -m rollout.verl_cpu.sglang.launch`. Written for SGLang 0.5.18.
"""
