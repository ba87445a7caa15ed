"""Energy of the CPU from RAPL, where the kernel lets us read it (often root alone).

Format: Documentation/power/powercap/powercap.rst of Linux. Domains `intel-rapl:N` are packages, also on
AMD; of their parts only `dram` lies outside the package. `intel-rapl-mmio` repeats packages and is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(slots=True)
class _Domain:
    """One counter in microjoules that starts again at its range."""

    file: Path
    range_uj: int
    last_uj: int
    total_uj: int = 0

    def read(self) -> int:
        now = int(self.file.read_text())
        self.total_uj += now - self.last_uj if now >= self.last_uj else now + self.range_uj - self.last_uj
        self.last_uj = now
        return self.total_uj


class Rapl:
    """Counts from its making on. `problem` says why there is nothing to count."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self.problem = ""
        self._domains: list[_Domain] = []
        zones = [zone for zone in sorted(folder.glob("intel-rapl:*")) if _counts(zone)]
        if not zones:
            self.problem = f"no RAPL domain in {folder}"
            return
        try:
            self._domains = [_open(zone) for zone in zones]
        except PermissionError as error:
            self.problem = f"{error.filename} is not readable by this user"
        except (OSError, ValueError) as error:
            self.problem = f"RAPL: {error}"

    def energy_j(self) -> float | None:
        """Return the joules since the start; None where nothing counts them."""
        if self.problem:
            return None
        try:
            return sum([domain.read() for domain in self._domains]) / 1e6
        except (OSError, ValueError) as error:
            self.problem = f"RAPL: {error}"
            return None


def _counts(zone: Path) -> bool:
    """Whether a zone adds to the total: packages, and memory beside them."""
    try:
        name = (zone / "name").read_text().strip()
    except OSError:
        return False
    return name == "dram" if zone.name.count(":") > 1 else name.startswith("package")


def _open(zone: Path) -> _Domain:
    file = zone / "energy_uj"
    return _Domain(file, int((zone / "max_energy_range_uj").read_text()), int(file.read_text()))
