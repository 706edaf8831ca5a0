"""Hooks of schemathesis: what it asks of the server is small, so that it can ask for a lot."""

import schemathesis

# Where a request says how many tokens it wants.
LENGTHS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/generate": "max_new_tokens",
}
MOST_TOKENS = 3


@schemathesis.hook
def before_call(context, case, kwargs):
    length = LENGTHS.get(case.operation.path)
    body = case.body
    if length is None or not isinstance(body, dict):
        return
    if case.operation.path == "/generate":
        body = body.setdefault("sampling_params", {})
        if not isinstance(body, dict):
            return
    for name in (length, "max_completion_tokens"):
        # What is out of range or of another type is there to be refused.
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if body.get(length) is None:
        body[length] = MOST_TOKENS
    if isinstance(body.get("n"), int) and 2 < body["n"] <= 128:
        body["n"] = 2
