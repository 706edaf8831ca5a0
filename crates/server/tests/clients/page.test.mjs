// The playground in Chromium, against a running server and the default pair; run.sh starts both. Nothing
// on the page may ask another server or leave an error in the console.

import assert from "node:assert/strict";
import test, { after, before } from "node:test";
import { chromium } from "playwright-core";

const base = process.env.SLIPSTREAM_URL;
const KEY = "sk-suite";
const PHONE = { width: 360, height: 740 };

let browser;
before(async () => {
  // Everything runs as root in the gate's container, where the browser's own sandbox cannot start.
  const args = ["--no-sandbox", "--disable-dev-shm-usage"];
  browser = await chromium.launch({ executablePath: process.env.SLIPSTREAM_BROWSER, args });
});
after(() => browser.close());

/**
 * Opens the page in a fresh profile, runs `look` on it, and holds it to its promises. `noted` is what the
 * console may hold: the browser notes every refusal there.
 */
async function visit(options, look) {
  const { key = KEY, noted, ...context } = options;
  const profile = await browser.newContext(context);
  // There to fail instead of hanging, however slow the machine is.
  profile.setDefaultTimeout(120_000);
  const page = await profile.newPage();
  const [errors, requests] = [[], []];
  page.on("console", (line) => line.type() === "error" && errors.push(line.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push(request));
  if (key) await page.addInitScript((own) => sessionStorage.setItem("slipstream-key", own), key);
  await page.goto(base);
  await look(page, requests);
  assert.ok(requests.every((request) => new URL(request.url()).origin === base));
  assert.deepEqual(errors.filter((error) => !noted?.test(error)), []);
  await profile.close();
}

/** Sets what the answers shall be. */
async function settings(page, values) {
  if (!(await page.locator("#temperature").isVisible())) await page.locator("summary").click();
  for (const [id, value] of Object.entries(values)) await page.locator(`#${id}`).fill(String(value));
}

async function complete(page) {
  await page.locator("#status").filter({ hasText: "The answer is complete" }).waitFor();
}

const answer = (page, number = -1) => page.locator("#log .words").nth(number);

test("an answer streams, its tokens are coloured by origin, and the lanes are drawn", () =>
  visit({}, async (page) => {
    await settings(page, { length: 64, seed: 7, width: 5 });
    // What is written is looked at as it comes.
    await page.evaluate(() => {
      const lengths = new Set();
      const log = document.getElementById("log");
      new MutationObserver(() => lengths.add(log.textContent.length)).observe(log, {
        childList: true,
        subtree: true,
      });
      globalThis.lengths = lengths;
    });
    await page.locator("#prompt").fill("Count from one to twenty in words.");
    await page.locator("#send").click();
    await complete(page);
    assert.ok((await page.evaluate(() => globalThis.lengths.size)) > 4, "it came in pieces");
    assert.ok((await answer(page).textContent()).length > 20);
    assert.match(await page.locator("#log .figures").last().textContent(), /64 tokens .* seed 7/);
    assert.match(await page.locator("#tau").textContent(), /^[1-5]\.\d\d$/);
    assert.match(await page.locator("#rate").textContent(), /^\d+$/);

    const drafted = answer(page).locator(".drafted").first();
    const back = (place) => place.evaluate((span) => getComputedStyle(span).backgroundColor);
    const uncoloured = await back(drafted);
    assert.ok(!(await page.locator("#legend").isVisible()));
    assert.ok(!(await answer(page).locator(".refused").first().isVisible()));
    await page.locator("#colours").check();
    const own = answer(page).locator(".own").first();
    assert.notEqual(await back(drafted), uncoloured);
    assert.notEqual(await back(drafted), await back(own));
    assert.ok(await page.locator("#legend").isVisible());
    assert.ok(await answer(page).locator(".refused").first().isVisible());

    await page.locator("#lanes rect.verify").first().waitFor();
    for (const kind of ["planned", "flying", "landed", "draft"]) {
      assert.ok((await page.locator(`#lanes rect.${kind}`).count()) > 0, kind);
    }
    assert.match(await page.locator("#lanes-words").textContent(), /^Step \d+: .* 0 waiting\.$/);
  }));

test("a conversation goes on, and can be begun anew; what is said stays text", () =>
  visit({}, async (page, requests) => {
    await settings(page, { length: 12 });
    const markup = '<img src="x" onerror="document.title = 1"><b>bold</b>';
    for (const words of ["Name a fruit.", markup]) {
      await page.locator("#prompt").fill(words);
      await page.locator("#prompt").press("Enter");
      await page.locator("#send:enabled").waitFor();
    }
    const said = await Promise.all([0, 1, 2].map((at) => answer(page, at).textContent()));
    assert.deepEqual([said[0], said[2]], ["Name a fruit.", markup]);
    assert.equal(await page.locator("#log img, #log b").count(), 0);
    assert.equal(await page.title(), "Slipstream playground");
    const asked = requests.filter((request) => request.url().endsWith("/tokenize"));
    const roles = ["user", "assistant", "user"];
    const { messages } = asked[1].postDataJSON();
    assert.deepEqual(messages.map((message) => message.role), roles);
    const shown = await answer(page, 1).evaluate((words) =>
      [...words.children].filter((part) => part.className !== "refused").map((part) => part.textContent),
    );
    assert.equal(messages[1].content, shown.join(""));
    await page.locator("#fresh").click();
    assert.equal(await page.locator("#log .message").count(), 0);
  }));

test("a refusal is shown in the server's words, and the question can be asked again", () =>
  visit({ noted: /status of 400/ }, async (page) => {
    await settings(page, { temperature: 3 });
    await page.locator("#prompt").fill("Hi");
    await page.locator("#send").click();
    const problem = page.locator("#problem");
    await problem.filter({ hasText: "temperature" }).waitFor();
    assert.equal(await page.locator("#prompt").inputValue(), "Hi");
    await settings(page, { temperature: 0, length: 4 });
    await page.locator("#send").click();
    await complete(page);
    assert.ok(!(await problem.isVisible()));
  }));

test("a race tells the speed-up and that the bytes are the same", () =>
  visit({}, async (page, requests) => {
    await settings(page, { length: 64, temperature: 0.7, width: 4 });
    await page.locator("#tab-race").click();
    await page.locator("#go").click();
    const verdict = page.locator("#verdict");
    await verdict.filter({ hasText: "same bytes ✓" }).waitFor();
    assert.match(await verdict.textContent(), /^speed-up \d+\.\d\d × · same bytes ✓ \(\d+ bytes, \d+ tokens\)$/);
    const runs = requests.filter((request) => request.url().endsWith("/generate"));
    const [plain, drafted] = runs.map((request) => request.postDataJSON());
    assert.deepEqual([plain, drafted].map((run) => run.speculation.enabled), [false, true]);
    assert.deepEqual(plain.sampling_params, drafted.sampling_params);
    assert.match(await page.locator("#plain-figures").textContent(), /no drafts/);
    assert.match(await page.locator("#drafted-figures").textContent(), /τ \d/);
    const text = (name) => page.locator(`#${name}-text`).evaluate((element) => element.innerText);
    const before = await text("plain");
    assert.ok(before.length > 20);
    assert.equal(await text("drafted"), before);
    await page.locator("#replay").click();
    await page.locator("#replay:enabled").waitFor();
    assert.deepEqual([await text("plain"), await text("drafted")], [before, before]);
  }));

test("everything can be done from the keyboard", () =>
  visit({}, async (page) => {
    const focus = () => page.evaluate(() => document.activeElement.id);
    assert.equal(await focus(), "prompt", "the prompt waits for text");
    // Long enough that it does not end by itself before it is stopped.
    await settings(page, { length: 4000 });
    await page.locator("#prompt").focus();
    await page.keyboard.type("Tell a very long story.");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("Begin.");
    await page.keyboard.press("Enter");
    await answer(page).locator("span").first().waitFor();
    assert.equal(await answer(page, 0).textContent(), "Tell a very long story.\nBegin.");
    await page.keyboard.press("Escape");
    await page.locator("#status").filter({ hasText: "stopped" }).waitFor();
    assert.match(await page.locator("#log .figures").last().textContent(), /stopped$/);

    // Once around the page; every stop has a name.
    const names = new Map();
    for (let i = 0; i < 40 && !names.has("prompt"); i += 1) {
      await page.keyboard.press("Tab");
      const [id, name] = await page.evaluate(() => {
        const { activeElement: at } = document;
        const words = at.ariaLabel ?? at.labels?.[0]?.textContent ?? at.textContent;
        return [at.id || at.tagName, words.trim()];
      });
      assert.ok(name || id === "BODY", `${id} has a name`);
      names.set(id, name);
    }
    for (const id of ["tab-chat", "log", "send", "fresh", "colours", "temperature", "seed", "key", "live"]) {
      assert.ok(names.has(id), `${id} is reached`);
    }

    await page.locator("#length").focus();
    await page.keyboard.press("Control+A");
    await page.keyboard.type("16");
    await page.locator("#tab-chat").focus();
    await page.keyboard.press("ArrowRight");
    assert.equal(await focus(), "tab-race");
    assert.ok(await page.locator("#race").isVisible());
    assert.ok(!(await page.locator("#chat").isVisible()));
    await page.keyboard.press("Tab");
    assert.equal(await focus(), "race-prompt");
    await page.keyboard.press("Enter");
    await page.locator("#verdict").filter({ hasText: "same bytes ✓" }).waitFor();
  }));

test("a phone has room for all of it", () =>
  visit({ viewport: PHONE, hasTouch: true, isMobile: true }, async (page) => {
    const wide = () => page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok((await wide()) <= PHONE.width);
    await settings(page, { length: 12 });
    assert.ok((await wide()) <= PHONE.width);
    await page.locator("#prompt").fill("w".repeat(300));
    await page.locator("#send").tap();
    await complete(page);
    assert.ok((await wide()) <= PHONE.width);
    for (const id of ["send", "stop", "fresh", "tab-chat", "tab-race"]) {
      assert.ok((await page.locator(`#${id}`).boundingBox()).height >= 44, `${id} is large enough`);
    }
    await page.locator("#tab-race").tap();
    assert.ok(await page.locator("#go").isVisible());
    assert.ok((await wide()) <= PHONE.width);
  }));

/** Contrast of two colours `rgb(r, g, b)`, as WCAG 2 defines it. */
function contrast(one, two) {
  const light = (colour) => {
    const parts = colour.match(/\d+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [high, low] = [light(one), light(two)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

test("dark and light follow the system, and both can be read", async () => {
  const backs = [];
  for (const colorScheme of ["light", "dark"]) {
    await visit({ colorScheme }, async (page) => {
      await page.locator("#colours").check();
      const pairs = await page.evaluate(() => {
        const back = getComputedStyle(document.body).backgroundColor;
        const panel = getComputedStyle(document.getElementById("log")).backgroundColor;
        const of = (element) => getComputedStyle(element);
        const on = (selector, below) => [of(document.querySelector(selector)).color, below];
        const marked = (selector) => {
          const style = of(document.querySelector(selector));
          return [style.color, style.backgroundColor];
        };
        return [
          on("body", back),
          on("#status", back),
          on("#log .hint", panel),
          on("dt", panel),
          on("#legend .refused", back),
          marked("#legend .drafted"),
          marked("#legend .own"),
          marked("#send"),
        ];
      });
      backs.push(pairs[0][1]);
      for (const pair of pairs) assert.ok(contrast(...pair) >= 4.5, `${colorScheme}: ${pair}`);
    });
  }
  assert.ok(contrast(...backs) > 10, "one is dark and one is light");
});

test("the key is asked for, kept for the tab alone, and sent to this server", () =>
  visit({ key: null, noted: /status of 401/ }, async (page, requests) => {
    await page.locator("#problem").filter({ hasText: "API key" }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), "key");
    await page.keyboard.type(KEY);
    await page.keyboard.press("Enter");
    await page.locator("#model").filter({ hasText: "smollm2" }).waitFor();
    assert.ok(!(await page.locator("#problem").isVisible()));
    const kept = await page.evaluate(() => [Object.values(sessionStorage), localStorage.length]);
    assert.deepEqual(kept, [[KEY], 0]);
    const last = requests.filter((request) => request.url().endsWith("/server_info")).pop();
    assert.equal((await last.allHeaders()).authorization, `Bearer ${KEY}`);
    await settings(page, { length: 4 });
    await page.locator("#prompt").fill("Hi");
    await page.locator("#send").click();
    await complete(page);
  }));
