"""Who was granted how many bytes on which device. A load that does not fit is refused with these lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from inferd.devices import HostMemory
from inferd_client.protocol import DeviceStatus, MemoryEntry

HOST = "cpu"
MIB = 1 << 20


@dataclass(slots=True)
class Device:
    """Grants on one device. `limit` None: unknown, nothing is refused."""

    name: str
    limit: int | None
    grants: dict[str, int] = field(default_factory=dict)

    @property
    def granted(self) -> int:
        return sum(self.grants.values())


class Ledger:
    """Byte grants of all engine workers."""

    def __init__(self, limit: int, reserve: int, measure: Callable[[], HostMemory | None]) -> None:
        self._measure = measure
        self._reserve = reserve
        memory = measure()
        host_limit = limit or (max(0, memory.free - reserve) if memory else None)
        self.devices = {HOST: Device(HOST, host_limit)}
        self.besides: dict[str, Callable[[], int | None]] = {}
        """Bytes on the host that no grant holds, by whose they are: shown, and never a reason to refuse."""

    def room(self, device: str) -> int | None:
        """Bytes that may still be granted; None = unknown."""
        entry = self._device(device)
        if entry.limit is None:
            return None
        return max(0, entry.limit - entry.granted)

    def grant(self, device: str, owner: str, need: int) -> int | None:
        """Give `owner` all the room there is, if at least `need`; 0 = without a limit, None = refused.

        The worker sizes its KV pool inside the grant; `settle` returns what it did not take.
        """
        room = self.room(device)
        if room is None:
            self._device(device).grants[owner] = 0
            return 0
        if room < need:
            return None
        self._device(device).grants[owner] = room
        return room

    def settle(self, device: str, owner: str, used: int) -> None:
        """Replace a grant by what was taken of it, on the device where the worker really is."""
        self.release(owner)
        self._device(device).grants[owner] = used

    def release(self, owner: str) -> None:
        for device in self.devices.values():
            device.grants.pop(owner, None)

    def explain(self, device: str, need: int) -> str:
        """Say why `need` bytes do not fit."""
        entry = self._device(device)
        lines = ", ".join(f"{owner} {used // MIB} MiB" for owner, used in entry.grants.items()) or "nothing"
        limit = "unknown" if entry.limit is None else f"{entry.limit // MIB} MiB"
        return (
            f"needs at least {need // MIB} MiB on {device}; limit {limit}, granted: {lines}. "
            "Unload a model, or raise daemon.memory_limit"
        )

    def statuses(self) -> tuple[DeviceStatus, ...]:
        memory = self._measure()
        return tuple(
            DeviceStatus(
                name=device.name,
                total_bytes=memory.total if memory and device.name == HOST else None,
                free_bytes=memory.free if memory and device.name == HOST else None,
                limit_bytes=device.limit,
                ledger=tuple(MemoryEntry(owner=owner, bytes=used) for owner, used in self._lines(device)),
            )
            for device in self.devices.values()
        )

    def _lines(self, device: Device) -> list[tuple[str, int]]:
        besides = self.besides if device.name == HOST else {}
        shown = [(owner, used) for owner, measure in besides.items() if (used := measure()) is not None]
        return [*device.grants.items(), *shown]

    def _device(self, name: str) -> Device:
        return self.devices.setdefault(name, Device(name, None))


def device_key(setting: str) -> str:
    """The ledger's name of a configured device; `auto` counts on the host until the worker says more."""
    return HOST if setting in ("auto", "cpu") else setting
