"""The page of flags says what the services parse."""

from __future__ import annotations

from tests.tools import flags_page


def test_the_page_of_flags_is_what_the_tables_give() -> None:
    assert flags_page.PAGE.read_text() == flags_page.page(), "docs/flags.md is out of date; run `make pages`"


def test_every_flag_of_every_service_is_on_the_page() -> None:
    page = flags_page.PAGE.read_text()
    for service, table in flags_page.SERVICES.items():
        for name in table.flags:
            dashes = "-" if len(name) == 1 else "--"
            assert f"| `{dashes}{name}` |" in page, f"{service}: --{name} is missing; run `make pages`"
