"""What the OpenAPI document cannot say and schemathesis has to know.

- To JSON Schema `800.0` is an integer. The daemon takes whole numbers only as they are written: `800`.
- A wait of a minute is allowed, and nobody wants to wait for it here.
"""

import schemathesis

WAIT_MS_MAX = 50


@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict):
        case.body = {name: wanted(name, value) for name, value in case.body.items()}


def wanted(name, value):
    """The same value, written as the daemon reads it, and soon over."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_wait = name.lower() == "wait_ms" and isinstance(value, int) and not isinstance(value, bool)
    return value % WAIT_MS_MAX if is_wait and WAIT_MS_MAX < value <= 60_000 else value
