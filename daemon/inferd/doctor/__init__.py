"""Look the installation over: each check says what it found, and what mends what is wrong."""

from inferd.doctor.checks import Examined, examine
from inferd.doctor.finding import Finding

__all__ = ["Examined", "Finding", "examine"]
