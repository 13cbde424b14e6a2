"""The airline of τ³-bench, whose server runs in an environment of its own; see docs/benchmarks.md."""
