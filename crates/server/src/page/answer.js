// An answer while it comes: its events, its figures, and its text in pieces by where they came from.

import { ask, stream } from "/page/server.js";

/** What an answer adds up to. `passes` are the target's, the prompt's not among them. */
export class Figures {
  constructor() {
    Object.assign(this, { tokens: 0, passes: 0, drafts: 0, refused: 0, ids: [], text: "", times: [] });
    this.first = undefined;
    this.end = undefined;
  }

  /** Takes an event that came at `now` (milliseconds). */
  take(event, now) {
    const { output_ids: ids, text, meta_info: meta } = event;
    if (this.tokens > 0 && ids.length > 0) this.passes += 1;
    if (ids.length > 0) this.first ??= now;
    this.tokens += ids.length;
    this.drafts += meta.output_token_drafted.filter(Boolean).length;
    this.refused += meta.refused_drafts.length;
    this.ids.push(...ids);
    this.text += text;
    this.last = now;
    this.times.push(now);
    if (meta.finish_reason) this.end = meta;
  }

  /** Tokens that a pass of the target committed. */
  get tau() {
    if (this.end) return this.end.spec_accept_length;
    return this.passes ? (this.tokens - 1) / this.passes : 0;
  }

  /** Tokens a second after the first token. */
  get rate() {
    const { end, tokens } = this;
    const seconds = end
      ? end.e2e_latency - end.time_to_first_token
      : ((this.last ?? 0) - (this.first ?? 0)) / 1000;
    return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0;
  }

  /** Share of the drafts that the target agreed with. */
  get accepted() {
    const all = this.drafts + this.refused;
    return all ? this.drafts / all : undefined;
  }

  /** In one line. */
  words() {
    const parts = [`${this.tokens} tokens`, `${this.rate.toFixed(0)} tok/s`];
    parts.push(this.drafts + this.refused ? `τ ${this.tau.toFixed(2)}` : "no drafts");
    if (this.end) parts.push(`seed ${this.end.seed}`, this.end.finish_reason.type);
    return parts.join(" · ");
  }
}

/**
 * Generates behind `messages` and hands each event to `hear`. `options` holds temperature, seed,
 * length, whether to draft and how wide to verify.
 */
export async function generate(messages, options, signal, hear) {
  const { template, temperature, seed, length, draft, width } = options;
  // The prompt as ids: this way every token of the answer comes with where it came from.
  const prompt = template
    ? { input_ids: (await ask("/tokenize", { messages }, signal)).tokens }
    : { text: messages[messages.length - 1].content };
  const body = {
    ...prompt,
    sampling_params: { temperature, seed, max_new_tokens: length },
    speculation: { enabled: draft, max_width: draft ? width : undefined, report: true },
  };
  const figures = new Figures();
  for await (const event of stream("/generate", body, signal)) {
    figures.take(event, performance.now());
    hear(event, figures);
  }
  return figures;
}

/** Appends what is new to `element`, as text and never as markup. */
export function write(element, event) {
  const pieces = event.meta_info.output_segments.map((piece) => {
    const span = document.createElement("span");
    span.className = piece.drafted ? "drafted" : "own";
    span.textContent = piece.text;
    return span;
  });
  const refused = event.meta_info.refused_drafts.map((draft) => draft.token);
  if (refused.length > 0) {
    const mark = document.createElement("s");
    mark.className = "refused";
    mark.textContent = refused.join("");
    mark.title = refused.length === 1 ? "1 draft refused" : `${refused.length} drafts refused`;
    // In front of the token that the target chose instead.
    const own = pieces.findLastIndex((piece) => piece.className === "own");
    pieces.splice(own < 0 ? pieces.length : own, 0, mark);
  }
  element.append(...pieces);
}
