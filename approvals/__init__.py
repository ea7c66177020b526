"""Tenants, policy, approvals, the execution ledger and the evidence chain."""
