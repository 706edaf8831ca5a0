// The race: one prompt, one seed, without and with drafting; which is faster, and whether both gave the
// same bytes.

import { generate, write } from "/page/answer.js";
import { onEnter } from "/page/keys.js";

const byId = (id) => document.getElementById(id);

/** Where two arrays first differ; `undefined` when they are equal. */
function difference(one, two) {
  const length = Math.max(one.length, two.length);
  for (let i = 0; i < length; i += 1) if (one[i] !== two[i]) return i;
  return undefined;
}

/** Whether two answers are the same, in words. */
export function verdict(plain, drafted) {
  const bytes = [plain, drafted].map((figures) => new TextEncoder().encode(figures.text));
  const at = difference(...bytes);
  const same = at === undefined && difference(plain.ids, drafted.ids) === undefined;
  const gain = plain.rate > 0 ? `speed-up ${(drafted.rate / plain.rate).toFixed(2)} ×` : "";
  const equal = same
    ? `same bytes ✓ (${bytes[0].length} bytes, ${plain.ids.length} tokens)`
    : `the bytes differ at ${at ?? "no byte, but the tokens do"} ✗`;
  return [gain, equal].filter(Boolean).join(" · ");
}

export class Race {
  constructor(page) {
    this.page = page;
    this.running = undefined;
    this.runs = [];
    byId("start").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    onEnter(byId("race-prompt"), () => this.start());
    byId("halt").addEventListener("click", () => this.stop());
    byId("replay").addEventListener("click", () => this.replay());
  }

  stop() {
    this.running?.abort();
  }

  busy(is) {
    byId("go").disabled = is;
    byId("halt").disabled = !is;
    byId("replay").disabled = is || this.runs.length < 2;
  }

  async start() {
    const text = byId("race-prompt").value.trim();
    if (!text || this.running) return;
    this.running = new AbortController();
    this.runs = [];
    this.busy(true);
    const asked = this.page.options();
    // Both take the same seed, whether it was given or is drawn here.
    const seed = asked.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    for (const name of ["plain", "drafted"]) {
      byId(`${name}-text`).replaceChildren();
      byId(`${name}-figures`).textContent = "waits";
    }
    byId("verdict").textContent = "Racing…";
    try {
      for (const name of ["plain", "drafted"]) {
        await this.run(name, text, { ...asked, seed, draft: name === "drafted" });
      }
      byId("verdict").textContent = verdict(this.runs[0].figures, this.runs[1].figures);
    } catch (problem) {
      byId("verdict").textContent = "The race was not finished.";
      this.runs = [];
      if (problem.name !== "AbortError") this.page.problem(problem);
    }
    this.running = undefined;
    this.busy(false);
  }

  async run(name, text, options) {
    const messages = [{ role: "user", content: text }];
    const events = [];
    const figures = await generate(messages, options, this.running.signal, (event, now) => {
      events.push(event);
      write(byId(`${name}-text`), event);
      byId(`${name}-figures`).textContent = now.words();
      this.page.figures(now);
    });
    this.runs.push({ name, events, figures });
  }

  /** Both answers again, at once, as fast as they came. */
  async replay() {
    if (this.running) return;
    const running = new AbortController();
    this.running = running;
    this.busy(true);
    await Promise.all(this.runs.map((run) => this.again(run, running.signal)));
    this.running = undefined;
    this.busy(false);
  }

  async again({ name, events, figures }, signal) {
    const text = byId(`${name}-text`);
    text.replaceChildren();
    const begin = performance.now() - figures.first;
    for (const [i, event] of events.entries()) {
      const wait = begin + figures.times[i] - performance.now();
      // Stopped: the rest is written at once.
      if (wait > 0 && !signal.aborted) await new Promise((done) => setTimeout(done, wait));
      write(text, event);
    }
  }
}
