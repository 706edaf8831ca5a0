// The conversation: what was said, the answer that comes, and a way to stop it.

import { generate, write } from "/page/answer.js";
import { onEnter } from "/page/keys.js";

const byId = (id) => document.getElementById(id);

export class Chat {
  /** `page` says what the settings are and takes figures, states and problems. */
  constructor(page) {
    this.page = page;
    this.messages = [];
    this.running = undefined;
    this.log = byId("log");
    this.hint = this.log.firstElementChild;
    this.prompt = byId("prompt");
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    onEnter(this.prompt, () => this.send());
    byId("stop").addEventListener("click", () => this.stop());
    byId("fresh").addEventListener("click", () => this.fresh());
  }

  stop() {
    this.running?.abort();
  }

  fresh() {
    this.stop();
    this.messages = [];
    this.log.replaceChildren(this.hint);
    this.page.state("A new conversation.");
    this.prompt.focus();
  }

  /** Adds a message to the log: where its words and its figures go. */
  message(who) {
    const [message, name, words, figures] = ["div", "div", "div", "p"].map((tag) =>
      document.createElement(tag),
    );
    message.className = "message";
    name.className = "who";
    name.textContent = who;
    words.className = "words";
    figures.className = "figures";
    message.append(name, words, figures);
    this.log.append(message);
    return { words, figures };
  }

  async send() {
    const text = this.prompt.value.trim();
    if (!text || this.running) return;
    const running = new AbortController();
    this.running = running;
    const messages = this.messages;
    messages.push({ role: "user", content: text });
    this.hint.remove();
    this.message("You").words.textContent = text;
    const answer = this.message("Model");
    this.prompt.value = "";
    this.busy(true);
    let said = "";
    try {
      const figures = await generate(messages, this.page.options(), running.signal, (events, now) => {
        this.follow(() => write(answer.words, events));
        said = now.text;
        this.page.figures(now);
        answer.figures.textContent = now.words();
      });
      this.page.state(`The answer is complete: ${figures.tokens} tokens.`);
    } catch (problem) {
      if (problem.name === "AbortError") {
        answer.figures.textContent += " · stopped";
        this.page.state("The answer was stopped.");
      } else {
        this.page.problem(problem);
      }
    }
    // What came is part of the conversation; a question without any answer is asked again.
    if (said) messages.push({ role: "assistant", content: said });
    else if (messages.pop() && this.messages === messages && !this.prompt.value) {
      this.prompt.value = text;
    }
    if (this.running === running) this.running = undefined;
    this.busy(false);
  }

  /** Writes, and keeps the end in sight for whoever looks at it. */
  follow(change) {
    const { log } = this;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    change();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }

  busy(is) {
    byId("send").disabled = is;
    byId("stop").disabled = !is;
    // Screen readers wait for the whole answer.
    this.log.setAttribute("aria-busy", String(is));
    if (is) this.page.state("The model answers…");
  }
}
