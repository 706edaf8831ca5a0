// The conversation: what was said, the answer that comes, and a way to stop it.

import { generate, write } from "/page/answer.js";
import { onEnter } from "/page/keys.js";

const byId = (id) => document.getElementById(id);

/** Milliseconds between two looks at where the end of the text is. */
const PACE = 50;

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
    const { log } = this;
    this.atEnd = true;
    log.addEventListener("scroll", () => {
      this.atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    });
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
      const figures = await generate(messages, this.page.options(), running.signal, (event, now) => {
        write(answer.words, event);
        this.keepUp();
        said += event.text;
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

  /**
   * Keeps the end in sight for whoever looks at it: now and then, since where the end is has the whole text
   * laid out. For each token of a long answer that would keep the page from anything else.
   */
  keepUp() {
    this.scrolling ??= setTimeout(() => {
      this.scrolling = undefined;
      if (this.atEnd) this.log.scrollTop = this.log.scrollHeight;
    }, PACE);
  }

  busy(is) {
    byId("send").disabled = is;
    byId("stop").disabled = !is;
    // Screen readers wait for the whole answer.
    this.log.setAttribute("aria-busy", String(is));
    if (is) this.page.state("The model answers…");
  }
}
