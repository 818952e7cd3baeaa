"""The run folder and its ledger -> report/: tables, figures and conclusions, all computed from files of this run."""
