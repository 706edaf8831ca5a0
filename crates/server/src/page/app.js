// The playground: joins settings, chat, race and lanes. Plain modules, no build step, and nothing from
// anywhere but this server.

import { Chat } from "/page/chat.js";
import { show } from "/page/lanes.js";
import { Race } from "/page/race.js";
import { ask, key, Refusal } from "/page/server.js";
import { tabs } from "/page/tabs.js";

const byId = (id) => document.getElementById(id);

/** How often the lanes are looked at, in milliseconds: while something runs, and otherwise. */
const [OFTEN, SELDOM] = [400, 2000];

/** What the server says of itself. */
const server = { template: true, open: false };

const page = {
  /** The settings; what is left empty is the server's to choose. */
  options() {
    const number = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
    return {
      template: server.template,
      temperature: number("temperature"),
      seed: number("seed"),
      length: number("length"),
      draft: byId("drafting").checked,
      width: number("width"),
    };
  },

  /** Shows the figures of an answer. */
  figures(now) {
    const { accepted } = now;
    byId("tau").textContent = now.tau ? now.tau.toFixed(2) : "–";
    byId("rate").textContent = now.rate.toFixed(0);
    byId("count").textContent = String(now.tokens);
    byId("accepted").textContent = accepted === undefined ? "–" : `${(accepted * 100).toFixed(0)} %`;
  },

  state(words) {
    byId("status").textContent = words;
    byId("problem").hidden = true;
  },

  problem(problem) {
    byId("status").textContent = "";
    byId("problem").hidden = false;
    byId("problem").textContent = problem.message;
    if (problem instanceof Refusal && problem.status === 401) {
      byId("settings").open = true;
      byId("key").focus();
    }
  },
};

/** Asks what is served. */
async function meet() {
  try {
    const [model, info] = await Promise.all([ask("/model_info"), ask("/server_info")]);
    server.template = model.has_chat_template;
    server.open = true;
    const drafts = info.speculation ? `drafts in blocks of ${info.speculation.block}` : "no drafter";
    byId("model").textContent = `${model.model_path} · ${drafts}`;
    byId("problem").hidden = true;
  } catch (problem) {
    server.open = false;
    byId("model").textContent = "";
    page.problem(problem);
  }
}

async function watch() {
  let pause = SELDOM;
  // A server that wants a key is left alone until it is given.
  if (server.open && byId("live").checked && document.visibilityState === "visible") {
    try {
      const trace = await ask("/trace/recent");
      show(trace);
      if (trace.num_requests_running > 0) pause = OFTEN;
    } catch {
      // The server is gone; whoever asks it something is told.
      byId("lanes-words").textContent = "The server does not show its lanes.";
    }
  }
  setTimeout(watch, chat.running || race.running ? OFTEN : pause);
}

function colour() {
  const on = byId("colours").checked;
  byId("talk").classList.toggle("coloured", on);
  byId("legend").hidden = !on;
}

const chat = new Chat(page);
const race = new Race(page);
tabs(document.querySelector("[role=tablist]"), () => page.state(""));
byId("colours").addEventListener("change", colour);
byId("key").value = key.get();
byId("key").addEventListener("change", () => {
  key.set(byId("key").value.trim());
  meet();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    chat.stop();
    race.stop();
  }
});
// Where there is little room the prompt comes first.
byId("settings").open = window.matchMedia("(min-width: 52rem)").matches;
byId("prompt").focus();
colour();
meet();
watch();
