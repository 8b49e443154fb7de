// Consumers of streams, and how far each is behind.

import { json, path, reason } from "./api.js";
import { element, field, say, show, Table } from "./dom.js";
import { count, duration, NOTHING } from "./format.js";

const PAUSE_MS = 250;
const REFRESH_MS = 5000;
const ASKED = 50;

export class ConsumerTable {
  constructor(withStream) {
    const columns = [
      { label: "Consumer", text: (row) => row.name, sort: (row) => row.name },
      { label: "Lag", text: (row) => count(row.lag), number: true, sort: (row) => row.lag },
      { label: "Unacknowledged", text: (row) => count(row.ack_pending_count), number: true, sort: (row) => row.ack_pending_count },
      { label: "Acknowledged", text: (row) => count(row.acked_count), number: true, sort: (row) => row.acked_count },
      { label: "Delivered again", text: (row) => count(row.redelivered_count), number: true, sort: (row) => row.redelivered_count },
      { label: "Given up", text: (row) => count(row.given_up_count), number: true, sort: (row) => row.given_up_count },
      { label: "Next seq", text: (row) => count(row.next_seq), number: true },
      { label: "Ack wait", text: (row) => duration(row.config.ack_wait_seconds), number: true },
      { label: "Dead letters", text: (row) => row.config.dead_letter ?? NOTHING },
    ];
    if (withStream) columns.splice(1, 0, { label: "Stream", fill: link, sort: (row) => row.stream });
    this.table = new Table("Consumers", columns, (row) => `${row.stream} ${row.name}`);
    this.node = this.table.node;
  }

  update(rows) {
    this.table.update(rows);
  }
}

function link(cell, row) {
  if (!cell.firstChild) cell.append(element("a", { text: row.stream, href: `#${path("/stores", "stream", row.stream)}` }));
}

export class ConsumersView {
  constructor() {
    this.asking = 0;
    this.prefix = element("input", { id: "consumer-prefix", type: "search", autocomplete: "off", spellcheck: "false", on: { input: () => this.changed() } });
    this.summary = element("p", { class: "empty", role: "status", text: "Asking …" });
    this.table = new ConsumerTable(true);
    this.node = element(
      "section", { class: "card", "aria-label": "Consumers" },
      element(
        "form", { class: "tools", role: "search", on: { submit: (event) => { event.preventDefault(); this.load(); } } },
        field("Stream begins with", this.prefix),
      ),
      this.summary, element("div", { class: "scroll" }, this.table.node),
    );
    show(this.table.node, false);
    this.load();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  changed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), PAUSE_MS);
  }

  async load() {
    clearTimeout(this.timer);
    const turn = ++this.asking;
    try {
      const parameters = new URLSearchParams({ prefix: this.prefix.value, limit: ASKED });
      const found = document.hidden ? null : await json(`/api/v1/consumers?${parameters}`);
      if (turn !== this.asking || this.closed) return;
      if (found) this.found(found);
    } catch (error) {
      if (turn !== this.asking || this.closed) return;
      say(this.summary, `The consumers cannot be listed: ${reason(error)}`);
      show(this.table.node, false);
    }
    this.timer = setTimeout(() => this.load(), REFRESH_MS);
  }

  found({ consumers, asked, more }) {
    const streams = `${more ? "the first " : ""}${count(asked)} stream${asked === 1 ? "" : "s"}`;
    const which = `${streams}${more ? "; type a name to ask others" : ""}`;
    say(this.summary, consumers.length
      ? `${count(consumers.length)} consumer${consumers.length === 1 ? "" : "s"} of ${which}. Streams in the bucket alone are not asked.`
      : `No consumers in ${which}. Streams in the bucket alone are not asked.`);
    this.table.update(consumers);
    show(this.table.node, consumers.length > 0);
  }
}
