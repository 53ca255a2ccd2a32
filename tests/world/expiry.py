"""DynamoDB's time to live: what has expired is deleted days later, and read until then.

https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/TTL.html
"""

from typing import Final

from tests.world.cloud import Cloud

_DAY_S: Final = 86_400.0
_LATEST_S: Final = 3 * _DAY_S


class Expiry:
    """Deletes expired items, each so many hours or days after its time."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._tables = [spec for spec in cloud.wiring.tables.values() if spec.expires]
        self._late_s: dict[str, float] = {}

    def sweep(self) -> None:
        """Delete what is due by now."""
        for spec in self._tables:
            for item in self._cloud.dynamodb.all(spec.name):
                expires_s = float(item.get(spec.expires, {}).get("N", "inf"))
                past_s = self._cloud.simulation.now_ms / 1000 - expires_s
                if past_s <= 0:
                    continue
                key = {name: item[name] for name in spec.keys}
                if past_s < self._lateness_s(f"{spec.name} {key}"):
                    self._cloud.use("an expired item that is still there")
                    continue
                self._cloud.use("an expired item that is deleted")
                self._cloud.dynamodb.delete_item(TableName=spec.name, Key=key)

    def _lateness_s(self, name: str) -> float:
        if name not in self._late_s:
            self._late_s[name] = _LATEST_S * self._cloud.roll(f"expiry {name}") ** 2
        return self._late_s[name]
