"""Whether an environment keeps the harness contract, clause by clause."""

from rollout.contract.check import Options, check_environment
from rollout.contract.report import Clause, Finding, Outcome, Report

__all__ = ["Clause", "Finding", "Options", "Outcome", "Report", "check_environment"]
