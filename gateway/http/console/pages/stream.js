// The messages of a stream: the last ones, older ones on demand, and new ones as they come.

import { ask, follow, json, path, reason } from "./api.js";
import { card, element, field, say, show } from "./dom.js";
import { moment, NOTHING, size, visible } from "./format.js";

const PAGE = 50;
const KEPT = 500;
const SHOWN_CHARACTERS = 2048;

export class StreamContent {
  constructor(name) {
    this.name = name;
    this.feed = null;
    this.waiting = [];
    this.lowest = null;
    this.follows = element("button", { type: "button", "aria-pressed": "false", text: "Follow", on: { click: () => this.toggle() } });
    this.older = element("button", { type: "button", text: "Older messages", on: { click: () => this.load(this.lowest - 1) } });
    this.note = element("span", { class: "quiet", role: "status" });
    this.list = element("ol", { class: "messages", tabindex: "0", "aria-label": "Messages, the newest first" });
    this.empty = element("p", { class: "empty", text: "Reading …" });
    this.value = element("textarea", { id: "append-value", rows: "2", spellcheck: "false" });
    this.said = element("span", { class: "said", role: "status" });
    const form = element(
      "form", { class: "form", on: { submit: (event) => { event.preventDefault(); this.append(); } } },
      field("Append a message", this.value),
      element("p", { class: "actions" }, element("button", { class: "primary", text: "Append" }), this.said),
    );
    this.node = card(
      "Messages", { beside: [this.follows, this.note] }, this.empty, this.list,
      element("p", { class: "tools" }, this.older), element("details", {}, element("summary", { text: "Append" }), form),
    );
    show(this.list, false);
    show(this.older, false);
    this.load(null);
  }

  close() {
    this.closed = true;
    this.feed?.abort();
  }

  known() {}

  async load(end) {
    const parameters = new URLSearchParams({ limit: PAGE });
    if (end !== null) parameters.set("end_seq", end);
    try {
      const { messages } = await json(`${path("/api/v1/stores", "stream", this.name, "messages")}?${parameters}`);
      if (this.closed) return;
      for (const message of messages.reverse()) this.list.append(this.row(message));
      this.lowest = messages.at(-1)?.seq ?? this.lowest;
      show(this.older, messages.length === PAGE);
      this.counted();
    } catch (error) {
      show(this.empty, true);
      say(this.empty, `The messages cannot be read: ${reason(error)}`);
    }
  }

  counted() {
    const some = this.list.children.length > 0;
    show(this.list, some);
    show(this.empty, !some);
    if (!some) say(this.empty, "No messages.");
  }

  row(message) {
    const about = [moment(message.time), size(message.size_bytes)];
    if (message.subject !== undefined) about.unshift(visible(message.subject));
    for (const [name, text] of Object.entries(message.headers ?? {})) about.push(`${visible(name)}: ${visible(text)}`);
    const content = element("div", {}, preview(message));
    if (message.truncated && !message.unreadable) {
      const more = element("button", { type: "button", text: "Show all", "aria-label": `Show all of message ${message.seq}` });
      more.addEventListener("click", () => this.whole(message.seq, content, more));
      content.append(more);
    }
    const node = element(
      "li", {}, element("span", { class: "seq", text: String(message.seq) }), content,
      element("span", { class: "about", text: about.join(" · ") }),
    );
    node.dataset.seq = message.seq;
    return node;
  }

  async whole(seq, content, button) {
    try {
      const response = await ask(path("/v1/streams", this.name, String(seq)));
      const node = await shownValue(await response.arrayBuffer());
      content.querySelector(".value").replaceWith(node);
      button.remove();
    } catch (error) {
      say(button, reason(error));
    }
  }

  toggle() {
    const on = !this.feed;
    this.follows.setAttribute("aria-pressed", String(on));
    if (!on) {
      this.feed.abort();
      this.feed = null;
      say(this.note, "");
      return;
    }
    this.feed = new AbortController();
    const start = Number(this.list.firstChild?.dataset.seq ?? 0) + 1;
    const url = `${path("/v1/follow", this.name)}?start_seq=${start}`;
    say(this.note, "New messages come here.");
    follow(url, {
      signal: this.feed.signal,
      told: (event) => this.came(event),
      state: (state) => say(this.note, state === "open" ? "New messages come here." : reason(state)),
    });
  }

  came({ event, data }) {
    const change = JSON.parse(data);
    if (event === "set" && change.message) {
      if (this.waiting.length >= KEPT) this.waiting.shift();
      this.waiting.push(limited(change.message));
      if (this.waiting.length === 1) requestAnimationFrame(() => this.draw());
    } else if (event === "delete") {
      for (const seq of change.seqs ?? []) this.list.querySelector(`[data-seq="${Number(seq)}"]`)?.remove();
    } else if (event === "trim") {
      for (const node of [...this.list.children]) if (Number(node.dataset.seq) <= change.end_seq) node.remove();
    } else if (event === "reset") this.list.replaceChildren();
    this.counted();
  }

  draw() {
    for (const message of this.waiting) {
      const row = this.row(message);
      const old = this.list.querySelector(`[data-seq="${message.seq}"]`);
      if (old) old.replaceWith(row);
      else this.list.prepend(row);
    }
    this.waiting = [];
    while (this.list.children.length > KEPT) this.list.lastChild.remove();
    this.lowest = Number(this.list.lastChild?.dataset.seq ?? 0) || this.lowest;
    this.counted();
  }

  async append() {
    try {
      const response = await ask(path("/v1/streams", this.name), {
        method: "POST", body: this.value.value, headers: { "Content-Type": "text/plain;charset=utf-8" },
      });
      const ack = await response.json();
      say(this.said, `Stored as message ${ack.seq}, ${ack.durability}.`);
      this.said.className = "said text-good";
      this.value.value = "";
      if (!this.feed) {
        this.list.replaceChildren();
        this.load(null);
      }
    } catch (error) {
      say(this.said, reason(error));
      this.said.className = "said text-bad";
    }
  }
}

/** A message of the feed, whose value may be of any size, as the API's previews are. */
function limited(message) {
  const found = { ...message, truncated: false };
  if (typeof message.value === "string") {
    found.size_bytes = new TextEncoder().encode(message.value).length;
    found.truncated = message.value.length > SHOWN_CHARACTERS;
    found.value = message.value.slice(0, SHOWN_CHARACTERS);
  } else if (typeof message.value_base64 === "string") {
    found.size_bytes = Math.floor(message.value_base64.length * 0.75);
    found.truncated = message.value_base64.length > 344;
    found.value_base64 = message.value_base64.slice(0, 344);
  } else found.truncated = true;
  return found;
}

function preview(message) {
  if (message.unreadable) return element("span", { class: "value binary", text: visible(message.unreadable) });
  if (typeof message.value === "string") {
    const more = message.truncated ? " …" : "";
    return element("span", { class: "value", text: visible(message.value) + more || NOTHING });
  }
  if (typeof message.value_base64 === "string") return element("span", { class: "value binary", text: hex(message.value_base64) });
  return element("span", { class: "value binary", text: "a large value" });
}

function hex(base64) {
  const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** All of a value: text, or the beginning of what is no text. */
async function shownValue(buffer) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(buffer);
    return element("span", { class: "value", text: visible(text) });
  } catch {
    const bytes = [...new Uint8Array(buffer.slice(0, 4096))].map((byte) => byte.toString(16).padStart(2, "0"));
    const more = buffer.byteLength > 4096 ? " …" : "";
    return element("span", { class: "value binary", text: bytes.join(" ") + more });
  }
}
