"""The task contract; see `contract.py`. Light: imports neither torch, transformers nor sympy."""

from components.contract.compliance import Compliance, Reason
from components.contract.contract import Contract, build_contract, default_contract

__all__ = ["Compliance", "Contract", "Reason", "build_contract", "default_contract"]
