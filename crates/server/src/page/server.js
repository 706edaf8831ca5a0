// What the page asks of the server: JSON, and streams of events. The key goes along where there is one.

/** A refusal, in the server's words. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const KEY = "slipstream-key";

/** The API key; it lives as long as the tab. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

async function send(path, body, signal) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  const options = { headers, signal };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const response = await fetch(path, options);
  if (response.ok) return response;
  const answer = await response.json().catch(() => null);
  throw new Refusal(response.status, answer?.error?.message ?? `${path}: status ${response.status}`);
}

/** A JSON answer to a question, or to a plain GET without `body`. */
export async function ask(path, body, signal) {
  return (await send(path, body, signal)).json();
}

/** The events of a stream, as JSON, until its end. */
export async function* stream(path, body, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the answer was cut off");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      // Comments keep the connection open and say nothing.
      if (!event.startsWith("data: ")) continue;
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new Refusal(response.status, parsed.error.message);
      yield parsed;
    }
  }
}
