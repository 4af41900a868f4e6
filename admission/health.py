"""Whether the webhook can answer, as the kubelet asks it: it is ready first, and then it is tried."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Final

from vpa.durations import Duration
from vpa.telemetry.health import Health

log = logging.getLogger(__name__)

TRY: Final = 10.0
"""Seconds between two tries."""
TIMEOUT: Final = 5.0
SILENCE: Final = Duration.of(seconds=35)
"""Time without a try that worked after which the webhook is unhealthy."""
READ_PATIENCE: Final = 20.0
"""Seconds for which a webhook that has not read everything yet is not ready. After them it lets pods in
unchanged: who insists on its answer (failure policy Fail) could start nothing otherwise."""


class WebhookHealth(Health):
    """Unhealthy while it waits for something, and when its port no longer takes connections."""

    def __init__(self) -> None:
        super().__init__(SILENCE)
        self.waiting_for: str | None = "the start"

    def error(self) -> str | None:
        if self.waiting_for is not None:
            return f"Error: waiting for {self.waiting_for}"
        return super().error()

    async def watch(self, port: int) -> None:
        """Try the port until cancelled."""
        self.start()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # whether it answers is the question, not who
        while True:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await _handshake(port, context)
            except OSError as error:  # a TimeoutError is one
                log.warning("The port of the webhook does not answer: %s", str(error) or type(error).__name__)
            else:
                self.alive()
            await asyncio.sleep(TRY)


async def _handshake(port: int, context: ssl.SSLContext) -> None:
    _, writer = await asyncio.open_connection("localhost", port, ssl=context)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
