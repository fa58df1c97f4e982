from __future__ import annotations

from tests.config.files import files as files
