"""Makes values unchangeable in the tests. It has to be imported before the modules that define values."""

import attrs

from streamtool.core import values

values.frozen = attrs.frozen  # type: ignore[misc]  # what a type checker sees anyway
