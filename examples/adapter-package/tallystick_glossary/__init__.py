"""Adapters for tallystick: a target that translates by a glossary, and a judge that compares word by word."""
