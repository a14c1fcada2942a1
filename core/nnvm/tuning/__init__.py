"""Measured facts that compilations choose by, kept from process to process."""
