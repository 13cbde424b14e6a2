"""Validate an environment against the harness contract, clause by clause."""

from mcp_rollout.rollout.contract.check import Options, check_environment
from mcp_rollout.rollout.contract.report import Clause, ClauseResult, Outcome, Report

__all__ = ["Clause", "ClauseResult", "Options", "Outcome", "Report", "check_environment"]
