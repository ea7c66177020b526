"""Policy: rules and the facts of one action in, what is needed and why out. Pure: no clock, no database.

Policy is closed and only tightens (rule 5). `forbid` beats everything, several `require` add up to the
strictest, `allow` never lowers what another rule or the contract asks for, and where no rule matches the
contract's floor holds: one approver where the contract needs approval (spec runs: operations, spec jobs:
operations), none elsewhere. The order of the rules is for their reader; the outcome does not depend on it.
docs/policy.md is the manual.
"""

from approvals.policy.document import MAX_RULES, PolicyError, load_document, parse_rules
from approvals.policy.evaluation import evaluate
from approvals.policy.facts import Facts
from approvals.policy.rules import Comparison, Condition, Effect, Rule, Ruleset, matches_glob
from approvals.policy.verdicts import Finding, Match, NearMiss, Need, Verdict, explain, explain_near, stricter

__all__ = [
    "MAX_RULES",
    "Comparison",
    "Condition",
    "Effect",
    "Facts",
    "Finding",
    "Match",
    "NearMiss",
    "Need",
    "PolicyError",
    "Rule",
    "Ruleset",
    "Verdict",
    "evaluate",
    "explain",
    "explain_near",
    "load_document",
    "matches_glob",
    "parse_rules",
    "stricter",
]
