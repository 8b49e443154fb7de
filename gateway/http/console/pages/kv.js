// The keys and values of a kv, and an editor that overwrites only what it has shown.

import { ask, json, path, reason, Refusal } from "./api.js";
import { card, element, field, keyed, say, show } from "./dom.js";
import { count, size, visible } from "./format.js";

const PAGE = 200;
const PAUSE_MS = 200;
const MOST_CHARACTERS = 262_144;

export class KvContent {
  constructor(name) {
    this.name = name;
    this.revision = null;
    this.asking = 0;
    this.prefix = element("input", { id: "key-prefix", type: "search", autocomplete: "off", spellcheck: "false", on: { input: () => this.changed() } });
    this.summary = element("p", { class: "empty", role: "status", text: "Reading …" });
    this.list = element("ul", { class: "rows" });
    this.editor = new Editor(name, () => this.load());
    const fresh = element("button", { type: "button", text: "New key", on: { click: () => this.choose(null) } });
    const left = element(
      "div", {}, element("div", { class: "tools" }, field("Key begins with", this.prefix), fresh), this.summary, this.list,
    );
    this.node = card("Keys", {}, element("div", { class: "two" }, left, this.editor.node));
    this.load();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  /** The state of the store: keys are listed anew if it has changed. */
  known({ revision }) {
    if (this.revision !== null && this.revision !== revision) this.load();
    this.revision = revision;
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), PAUSE_MS);
  }

  async load() {
    const turn = ++this.asking;
    const parameters = new URLSearchParams({ limit: PAGE, prefix: this.prefix.value });
    try {
      const { keys, more } = await json(`${path("/api/v1/stores", "kv", this.name, "keys")}?${parameters}`);
      if (turn !== this.asking || this.closed) return;
      const none = this.prefix.value ? "No key fits." : "No keys.";
      const some = `${more ? "The first " : ""}${count(keys.length)} key${keys.length === 1 ? "" : "s"}${more ? "; type more to see others" : ""}`;
      say(this.summary, keys.length ? some : none);
      keyed(this.list, keys, (key) => `k${key}`, (key) => element(
        "li", {}, element(
          "button", { type: "button", class: "row", on: { click: () => this.choose(key) } },
          element("span", { class: "name", text: visible(key) }),
        ),
      ), (node, key) => this.mark(node, key));
    } catch (error) {
      if (turn === this.asking && !this.closed) say(this.summary, `The keys cannot be read: ${reason(error)}`);
    }
  }

  mark(node, key) {
    if (this.editor.key === key) node.firstChild.setAttribute("aria-current", "true");
    else node.firstChild.removeAttribute("aria-current");
  }

  choose(key) {
    this.editor.open(key);
    for (const node of this.list.children) this.mark(node, node.dataset.key.slice(1));
  }
}

/** One key. A save names the revision that was shown: whoever was quicker is not overwritten. */
class Editor {
  constructor(name, written) {
    this.name = name;
    this.written = written;
    this.key = undefined;
    this.revision = null;
    this.asking = 0;
    this.heading = element("h3", {}, element("code", { class: "name" }));
    this.about = element("span", { class: "quiet" });
    this.named = element("input", { id: "key-name", autocomplete: "off", spellcheck: "false", maxlength: "1024" });
    this.namedField = field("Key", this.named);
    this.value = element("textarea", { id: "key-value", rows: "9", spellcheck: "false" });
    this.valueField = field("Value", this.value);
    this.raw = element("span", { class: "value binary" });
    this.saving = element("button", { class: "primary", text: "Save" });
    this.deleting = element("button", { type: "button", class: "danger", text: "Delete", on: { click: () => this.delete() } });
    this.reading = element("button", { type: "button", text: "Read again", on: { click: () => this.open(this.key) } });
    this.said = element("span", { class: "said", role: "status" });
    this.form = element(
      "form", { class: "form", on: { submit: (event) => { event.preventDefault(); this.save(); } } },
      element("div", {}, this.heading, this.about), this.namedField, this.valueField, this.raw,
      element("p", { class: "actions" }, this.saving, this.reading, this.deleting), this.said,
    );
    this.empty = element("p", { class: "empty", text: "Choose a key to see its value." });
    this.node = element("section", { "aria-label": "Value" }, this.empty, this.form);
    show(this.form, false);
  }

  async open(key) {
    const turn = ++this.asking;
    this.key = key;
    this.revision = 0;
    this.contentType = "text/plain;charset=utf-8";
    this.#show({ text: "", fresh: key === null, about: "" });
    this.tell("", "");
    if (key === null) {
      this.named.value = "";
      this.named.focus();
      return;
    }
    try {
      const response = await ask(path("/v1/kv", this.name, key));
      const buffer = await response.arrayBuffer();
      if (turn !== this.asking) return;
      this.revision = Number(response.headers.get("etag")?.replaceAll('"', ""));
      this.contentType = response.headers.get("content-type") ?? this.contentType;
      this.#read(buffer);
    } catch (error) {
      if (turn !== this.asking) return;
      this.#show({ text: null, fresh: false, about: "" });
      const gone = error instanceof Refusal && error.status === 404;
      this.tell("bad", gone ? "The key is no longer there." : reason(error));
    }
  }

  #read(buffer) {
    const about = `revision ${count(this.revision)} · ${size(buffer.byteLength)}`;
    let text = null;
    try {
      text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(buffer);
    } catch {
      // It is no text.
    }
    // A text field would change line ends and drop NUL: what it cannot give back is not edited.
    const editable = text !== null && text.length <= MOST_CHARACTERS && !/[\u0000\r]/.test(text);
    this.#show({ text: editable ? text : null, fresh: false, about });
    if (!editable) {
      const bytes = [...new Uint8Array(buffer.slice(0, 2048))].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
      const more = buffer.byteLength > 2048 ? " …" : "";
      say(this.raw, text === null ? bytes + more : visible(text.slice(0, MOST_CHARACTERS)));
      this.tell("", "It is shown only: it is not text that a text field gives back as it was.");
    }
  }

  #show({ text, fresh, about }) {
    show(this.empty, false);
    show(this.form, true);
    show(this.heading, !fresh);
    show(this.namedField, fresh);
    show(this.deleting, !fresh);
    show(this.reading, !fresh);
    show(this.valueField, text !== null);
    show(this.saving, text !== null);
    show(this.raw, text === null);
    say(this.heading.firstChild, fresh ? "" : visible(this.key));
    say(this.about, about);
    say(this.raw, "");
    this.value.value = text ?? "";
  }

  async save() {
    const fresh = this.key === null;
    const key = fresh ? this.named.value : this.key;
    if (!key) return this.tell("bad", "A key has at least one character.");
    const headers = { "Content-Type": this.contentType };
    if (fresh) headers["If-None-Match"] = "*";
    else headers["If-Match"] = `"${this.revision}"`;
    return this.#write(async () => {
      const response = await ask(path("/v1/kv", this.name, key), { method: "PUT", body: this.value.value, headers });
      const ack = await response.json();
      this.key = key;
      this.revision = ack.revision;
      this.#show({ text: this.value.value, fresh: false, about: `revision ${count(ack.revision)}` });
      this.tell("good", `Saved, ${ack.durability}.`);
      if (fresh) this.value.focus();
    });
  }

  async delete() {
    return this.#write(async () => {
      await ask(path("/v1/kv", this.name, this.key), { method: "DELETE", headers: { "If-Match": `"${this.revision}"` } });
      const gone = this.key;
      this.key = undefined;
      show(this.form, false);
      show(this.empty, true);
      say(this.empty, `${visible(gone)} is deleted. Choose another key to see its value.`);
    });
  }

  async #write(request) {
    this.asking += 1;
    this.saving.disabled = this.deleting.disabled = true;
    try {
      await request();
      this.written();
    } catch (error) {
      const conflict = error instanceof Refusal && error.status === 412;
      this.tell("bad", conflict ? this.#conflict() : reason(error));
    } finally {
      this.saving.disabled = this.deleting.disabled = false;
    }
  }

  #conflict() {
    if (this.key === null) return "There is such a key already: choose it in the list.";
    return "Somebody else changed it since you read it. Nothing was overwritten: read it again, and repeat your change.";
  }

  tell(level, text) {
    this.said.className = `said ${level ? `text-${level}` : "quiet"}`;
    say(this.said, text);
  }
}
