// The store browser: a list that is searched by name, and one store beside it.

import { json, path, reason } from "./api.js";
import { element, field, keyed, say, show } from "./dom.js";
import { count } from "./format.js";
import { StoreView } from "./store.js";

const PAGE = 200;
const PAUSE_MS = 200;

//: What the list was searched for, kept while other views are shown.
const search = { prefix: "", kind: "" };

export class StoresView {
  constructor([kind, name]) {
    this.chosen = kind && name ? { kind, name } : null;
    this.store = this.chosen ? new StoreView(kind, name) : null;
    this.asking = 0;
    this.prefix = element("input", {
      id: "store-prefix", type: "search", value: search.prefix, autocomplete: "off", spellcheck: "false",
      on: { input: () => this.changed() },
    });
    this.kind = element(
      "select", { id: "store-kind", on: { change: () => this.changed(0) } },
      ...[["", "all"], ["stream", "streams"], ["kv", "kvs"]].map(([value, text]) => element("option", { value, text })),
    );
    this.kind.value = search.kind;
    this.summary = element("p", { class: "empty", role: "status" });
    this.list = element("ul", { class: "rows" });
    const tools = element(
      "form", { class: "tools", role: "search", "aria-label": "Stores", on: { submit: (event) => { event.preventDefault(); this.load(); } } },
      field("Name begins with", this.prefix), field("Kind", this.kind, "small"),
    );
    const list = element("section", { class: "card list", "aria-label": "Stores" }, tools, this.summary, this.list);
    const beside = this.store?.node ?? element(
      "section", { class: "card", "aria-label": "A store" },
      element("p", { class: "empty", text: "Choose a store to see what is in it." }),
    );
    this.node = element("div", { class: `browser ${this.store ? "chosen" : ""}` }, list, beside);
    this.load();
  }

  focus() {
    if (!this.store) return false;
    this.store.heading.focus();
    return true;
  }

  close() {
    clearTimeout(this.timer);
    this.closed = true;
    this.store?.close();
  }

  changed(pause = PAUSE_MS) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), pause);
  }

  async load() {
    clearTimeout(this.timer);
    search.prefix = this.prefix.value;
    search.kind = this.kind.value;
    const turn = ++this.asking;
    const parameters = new URLSearchParams({ limit: PAGE, prefix: search.prefix });
    if (search.kind) parameters.set("kind", search.kind);
    try {
      const found = await json(`/api/v1/stores?${parameters}`);
      if (turn === this.asking && !this.closed) this.found(found);
    } catch (error) {
      if (turn !== this.asking || this.closed) return;
      this.list.replaceChildren();
      say(this.summary, `The stores cannot be listed: ${reason(error)}`);
    }
  }

  found({ stores, more }) {
    const none = search.prefix || search.kind ? "No store fits." : "This tenant has no stores yet. The first write makes one.";
    const some = `${more ? "The first " : ""}${count(stores.length)} store${stores.length === 1 ? "" : "s"}${more ? "; type more of the name to see others" : ""}`;
    say(this.summary, stores.length ? some : none);
    keyed(this.list, stores, (row) => `${row.kind} ${row.name}`, (row) => element(
      "li", {}, element(
        "a", { href: `#${path("/stores", row.kind, row.name)}` },
        element("span", { class: "name", text: row.name }),
        element("span", {}, element("span", { class: "tag", text: row.kind }), " ", element("span", { class: "tag cold" })),
        element("span", { class: "more" }),
      ),
    ), (node, row) => {
      const [, tags, more] = node.firstChild.children;
      say(tags.lastChild, row.tier === "cold" ? "cold" : "");
      show(tags.lastChild, row.tier === "cold");
      say(more, row.server ? `${row.server} · epoch ${row.epoch}` : `no owner · epoch ${row.epoch}`);
      const chosen = this.chosen?.kind === row.kind && this.chosen.name === row.name;
      if (chosen) node.firstChild.setAttribute("aria-current", "true");
    });
  }
}
