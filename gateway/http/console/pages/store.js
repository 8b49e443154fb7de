// One store: its state, its settings, and what it holds.

import { json, path, reason } from "./api.js";
import { ConsumerTable } from "./consumers.js";
import { card, element, facts, say, show } from "./dom.js";
import { count, moment, NOTHING, size } from "./format.js";
import { KvContent } from "./kv.js";
import { StreamContent } from "./stream.js";

const REFRESH_MS = 5000;

export class StoreView {
  constructor(kind, name) {
    this.kind = kind === "kv" ? "kv" : "stream";
    this.name = name;
    this.heading = element("h2", { class: "title", text: name, tabindex: "-1" });
    this.problem = element("p", { class: "empty", role: "alert" });
    this.values = {};
    const labels = this.kind === "stream"
      ? [["count", "Messages"], ["bytes", "Bytes"], ["first_seq", "First seq"], ["last_seq", "Last seq"]]
      : [["count", "Keys"], ["bytes", "Bytes"]];
    labels.push(["revision", "Revision"], ["server", "Owner"], ["epoch", "Epoch"], ["time", "Changed"]);
    const list = facts(labels.map(([field, label]) => {
      this.values[field] = element("dd", { text: NOTHING });
      return [label, this.values[field]];
    }));
    const top = element(
      "section", { class: "card", "aria-label": "State" },
      element(
        "header", {}, element("a", { class: "back", href: "#/stores", text: "← All stores" }), this.heading,
        element("span", { class: "tag", text: this.kind }),
      ),
      element("div", { class: "body" }, list, this.problem),
    );
    this.content = this.kind === "stream" ? new StreamContent(name) : new KvContent(name);
    this.consumers = new ConsumerTable(false);
    this.consumersCard = card("Consumers", {}, element("div", { class: "scroll" }, this.consumers.node));
    this.settings = element("dl", { class: "settings" });
    const settings = element(
      "details", { class: "card" }, element("summary", { text: "Settings" }),
      element("div", { class: "body" }, this.settings),
    );
    this.node = element("div", { class: "stack" }, top, this.content.node, this.consumersCard, settings);
    show(this.consumersCard, false);
    show(this.problem, false);
    this.refresh();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.content.close();
  }

  async refresh() {
    try {
      if (!document.hidden) this.update(await json(path("/api/v1/stores", this.kind, this.name)));
      show(this.problem, false);
    } catch (error) {
      say(this.problem, `The store does not answer: ${reason(error)}`);
      show(this.problem, true);
    }
    if (!this.closed) this.timer = setTimeout(() => this.refresh(), REFRESH_MS);
  }

  update(found) {
    for (const [field, node] of Object.entries(this.values)) {
      const value = found[field];
      if (field === "time") say(node, value ? moment(value) : NOTHING);
      else say(node, field === "bytes" ? size(value) : typeof value === "number" ? count(value) : value || NOTHING);
    }
    if (!this.settings.firstChild) this.#settings(found);
    this.consumers.update(found.consumers);
    show(this.consumersCard, found.consumers.length > 0);
    this.content.known(found);
  }

  #settings({ settings, changed }) {
    for (const [name, value] of Object.entries(settings)) {
      const text = value === null ? "none" : value === "" ? NOTHING : String(value);
      const own = changed.includes(name);
      this.settings.append(
        element("dt", { text: name.replaceAll("_", " ") }),
        own ? element("dd", {}, element("strong", { text })) : element("dd", { text }),
      );
    }
  }
}
