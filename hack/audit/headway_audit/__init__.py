"""Audits the packages of the locks: known vulnerabilities, licences, and a bill of materials for each
image."""
