"""`tools/call` without the SDK's dispatcher: the same answers for a fraction of the CPU time.

Everything else, and every call that is out of the ordinary, is served by the SDK.
"""
