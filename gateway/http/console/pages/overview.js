// The view of the whole cluster: numbers over time, servers, tiers, cost, events and findings.

import { Charts } from "./charts.js";
import { card, element, facts, keyed, say, show, Table } from "./dom.js";
import {
  clock, count, dollars, duration, durationParts, NOTHING, percent, rate, short, size, sizeParts,
} from "./format.js";

const POINTS = 150;
const KEPT_EVENTS = 200;
const CHARTS = {
  operations_per_second: { label: "Operations", parts: (value) => [rate(value), "/s"] },
  append_seconds: { label: "Append, mean", parts: durationParts },
  sync_p99_seconds: { label: "Sync, p99", parts: durationParts },
  refused_per_second: { label: "Refusals", parts: (value) => [rate(value), "/s"] },
  open_stores: { label: "Open stores", parts: (value) => [count(value), ""] },
  followers: { label: "HTTP followers", parts: (value) => [count(value), ""] },
  consumers_lag: { label: "Consumers' lag", parts: (value) => [count(value), value === null ? "" : "messages"] },
  log_bytes: { label: "Commit logs", parts: sizeParts },
};
const STATES = { live: "good", draining: "warn", suspect: "warn", dead: "bad" };
const SEVERITIES = { note: "", warning: "warn", critical: "bad" };
const PARTS = {
  coordinator: "coordinator", standby: "standby", gateway_http: "HTTP gateway",
  gateway_jetstream: "JetStream gateway", auth: "auth service", persist: "persist server",
};

export class OverviewView {
  constructor() {
    this.charts = new Charts(CHARTS, POINTS);
    this.servers = serverTable();
    this.parts = partTable();
    this.tiers = new Tiers();
    this.cost = new Cost();
    this.stages = new Stages();
    this.findings = new Findings();
    this.events = new Events();
    this.serversNote = element("span", { class: "quiet" });
    this.partsEmpty = empty("The parts of this cluster tell no statistics: they are of an earlier version.");
    const heading = element("h2", { class: "unseen", id: "rates-title", text: "The last five minutes" });
    const rates = element("section", { "aria-labelledby": heading.id }, heading, this.charts.node);
    this.node = element(
      "div", { class: "stack" }, rates,
      card("Servers", { beside: [this.serversNote] }, element("div", { class: "scroll" }, this.servers.node)),
      element("div", { class: "columns" }, this.events.node, this.findings.node),
      element("div", { class: "columns" }, this.tiers.node, this.stages.node, this.cost.node),
      card("Coordinators and gateways", {}, element("div", { class: "scroll" }, this.parts.node), this.partsEmpty),
    );
  }

  history(found) {
    this.charts.load(found);
  }

  update(found) {
    this.charts.add(found.time, found.charts);
    const busiest = Math.max(1, ...found.servers.map((row) => row.operations_per_second));
    for (const row of found.servers) row.share = row.operations_per_second / busiest;
    this.servers.update(found.servers);
    say(this.serversNote, serverSummary(found.totals));
    this.parts.update(found.parts);
    show(this.parts.node, found.parts.length > 0);
    show(this.partsEmpty, found.parts.length === 0);
    this.tiers.update(found);
    this.cost.update(found);
    this.stages.update(found.totals);
    this.findings.update(found.findings);
  }

  happened(event) {
    this.events.add(event);
  }
}

export function empty(text) {
  return element("p", { class: "empty", text });
}

function serverSummary(totals) {
  const states = Object.entries(totals.servers_by_state).map(([state, number]) => `${number} ${state}`);
  return [...states, `${count(totals.assigned_stores)} stores owned`, `${count(totals.open_stores)} open`].join(" · ");
}

function state(cell, row) {
  if (!cell.firstChild) {
    cell.append(element("span", { class: "state" }, element("span", { class: "dot" }), element("span")));
  }
  const [dot, text] = cell.firstChild.children;
  dot.className = `dot ${STATES[row.state] ?? ""}`;
  say(text, row.state);
}

function load(cell, row) {
  if (!cell.firstChild) {
    cell.append(element("span", {}, element("span"), element("span", { class: "meter", "aria-hidden": "true" }, element("span"))));
  }
  const [number, meter] = cell.firstChild.children;
  say(number, rate(row.operations_per_second));
  meter.firstChild.style.width = `${Math.round(row.share * 100)}%`;
}

function titled(cell, text, title) {
  say(cell, text);
  if (cell.title !== title) cell.title = title;
}

function serverTable() {
  return new Table("Persist servers", [
    { label: "Server", text: (row) => row.server, sort: (row) => row.server },
    { label: "State", fill: state, sort: (row) => row.state },
    { label: "Zone", text: (row) => row.zone, sort: (row) => row.zone },
    { label: "Roles", text: (row) => row.roles.join(", "), sort: (row) => row.roles.join(", ") },
    { label: "Work", text: (row) => count(row.claims), number: true, sort: (row) => row.claims },
    { label: "Heartbeat", text: (row) => duration(row.heartbeat_age_seconds), number: true, sort: (row) => row.heartbeat_age_seconds },
    { label: "Operations/s", fill: load, number: true, sort: (row) => row.operations_per_second },
    { label: "Append", text: (row) => duration(row.append_seconds), number: true, sort: (row) => row.append_seconds ?? -1 },
    { label: "Sync p99", text: (row) => duration(row.sync?.p99), number: true, sort: (row) => row.sync?.p99 ?? -1 },
    { label: "Owns", text: (row) => count(row.assigned_stores), number: true, sort: (row) => row.assigned_stores },
    { label: "Open", text: (row) => count(row.open_stores), number: true, sort: (row) => row.open_stores },
    { label: "Log", text: (row) => size(row.log_bytes), number: true, sort: (row) => row.log_bytes },
    { label: "To snapshot", text: (row) => count(row.snapshot_backlog), number: true, sort: (row) => row.snapshot_backlog },
    { label: "Bucket/h", text: (row) => count(row.bucket_requests), number: true, sort: (row) => row.bucket_requests },
    { label: "CPU", text: (row) => percent(row.cpu_share), number: true, sort: (row) => row.cpu_share ?? -1 },
    { label: "Memory", text: (row) => size(row.memory_bytes), number: true, sort: (row) => row.memory_bytes ?? -1 },
    { label: "Incarnation", fill: (cell, row) => titled(cell, short(row.incarnation), row.incarnation) },
  ], (row) => row.server);
}

function partTable() {
  return new Table("Coordinators, gateways and other parts", [
    { label: "Part", text: (row) => row.name },
    { label: "Kind", text: (row) => PARTS[row.kind] ?? row.kind },
    { label: "Told", text: (row) => duration(row.heartbeat_age_seconds), number: true },
    { label: "Requests/s", text: (row) => rate(row.requests_per_second), number: true },
    { label: "Connections", text: (row) => count(row.connections), number: true },
    { label: "CPU", text: (row) => percent(row.cpu_share), number: true },
    { label: "Memory", text: (row) => size(row.memory_bytes), number: true },
    { label: "Up", text: (row) => duration((Date.now() - row.started_at_ms) / 1000), number: true },
    { label: "Host", text: (row) => row.host || NOTHING },
    { label: "Version", text: (row) => row.version || NOTHING },
  ], (row) => `${row.kind} ${row.name} ${row.started_at_ms}`);
}

/** Where the data of the tenant's stores is, and how far copies in the bucket are behind. */
class Tiers {
  constructor() {
    this.hot = element("span");
    this.cold = element("span", { class: "cold" });
    this.share = element("div", { class: "share", role: "img" }, this.hot, this.cold);
    this.values = Object.fromEntries(
      ["hot", "cold", "streams", "kvs", "backlog", "lag", "snapshots", "archived"].map((name) => [name, element("dd", { text: NOTHING })]),
    );
    this.note = element("span", { class: "quiet" });
    this.problem = empty("");
    const { hot, cold, streams, kvs, backlog, lag, snapshots, archived } = this.values;
    const list = facts([
      ["Hot (disk)", hot], ["Cold (bucket)", cold], ["Streams", streams], ["Kvs", kvs],
      ["To snapshot", backlog], ["Snapshot lag", lag], ["Snapshots", snapshots], ["Archived", archived],
    ]);
    for (const [at, name] of [[0, ""], [1, "cold"]]) {
      list.children[at].firstChild.prepend(element("span", { class: `key ${name}` }));
    }
    this.node = card("Tiers", { beside: [this.note] }, element("div", { class: "body" }, this.share, list, this.problem));
  }

  update({ census, census_problem: problem, tenant, totals }) {
    say(this.values.backlog, count(totals.snapshot_backlog));
    say(this.values.lag, totals.snapshot_backlog ? duration(totals.snapshot_lag_seconds) : NOTHING);
    say(this.values.snapshots, totals.snapshots_per_second === null ? NOTHING : `${rate(totals.snapshots_per_second * 3600)} /h`);
    say(this.values.archived, totals.archived_messages === null ? NOTHING : `${count(totals.archived_messages)} messages`);
    show(this.problem, Boolean(problem));
    say(this.problem, problem ? `Stores cannot be counted: ${problem}` : "");
    show(this.share, Boolean(census?.stores));
    if (!census) return;
    const least = census.complete ? "" : "the first ";
    say(this.note, `${least}${count(census.stores)} stores of tenant ${tenant}`);
    for (const name of ["hot", "cold", "streams", "kvs"]) say(this.values[name], count(census[name]));
    this.hot.style.flexGrow = census.hot;
    this.cold.style.flexGrow = census.cold;
    show(this.hot, census.hot > 0);
    show(this.cold, census.cold > 0);
    this.share.setAttribute("aria-label", `${count(census.hot)} hot, ${count(census.cold)} cold`);
  }
}

/** Where the time of an append goes. */
class Stages {
  constructor() {
    this.note = element("span", { class: "quiet" });
    this.table = new Table("Stages of an append", [
      { label: "Stage", text: (row) => row.label },
      { label: "Mean", text: (row) => duration(row.mean), number: true },
      { label: "p50", text: (row) => duration(row.p50), number: true },
      { label: "p99", text: (row) => duration(row.p99), number: true },
    ], (row) => row.label);
    this.empty = empty("No appends in the last seconds.");
    this.node = card("Appends", { beside: [this.note] }, this.table.node, this.empty);
  }

  update(totals) {
    const labels = { queue: "Queue", sync: "Sync of the log", gate: "Fence is read", release: "Answer" };
    const rows = Object.entries(totals.append_stages).map(([stage, latency]) => ({ label: labels[stage] ?? stage, ...latency }));
    if (totals.takeover_pause) rows.push({ label: "Takeovers, so far", ...totals.takeover_pause });
    this.table.update(rows);
    show(this.table.node, rows.length > 0);
    show(this.empty, rows.length === 0);
    say(this.note, totals.append_seconds === null ? "" : `${duration(totals.append_seconds)} in all`);
  }
}

class Cost {
  constructor() {
    this.note = element("span", { class: "quiet" });
    this.table = new Table("Cost of the bucket by kind of request", [
      { label: "Requests", text: (row) => row.kind },
      { label: "Per second", text: (row) => rate(row.requests), number: true },
      { label: "Per day", text: (row) => dollars(row.day), number: true },
      { label: "Per month", text: (row) => dollars(row.day * 30.44), number: true },
    ], (row) => row.kind);
    this.empty = empty("");
    this.budget = empty("");
    this.node = card("Cost of the bucket", { beside: [this.note] }, this.table.node, this.budget, this.empty);
  }

  update({ cost }) {
    const kinds = cost ? Object.keys({ ...cost.requests_per_second_by_kind, ...cost.dollars_per_day_by_kind }).sort() : [];
    this.table.update(kinds.map((kind) => ({
      kind, requests: cost.requests_per_second_by_kind[kind] ?? 0, day: cost.dollars_per_day_by_kind[kind] ?? 0,
    })));
    show(this.table.node, kinds.length > 0);
    const limited = typeof cost?.budget_dollars_per_day === "number";
    show(this.budget, limited);
    if (limited) {
      say(this.budget, `Budget ${dollars(cost.budget_dollars_per_day)} a day, ${percent(cost.budget_left_ratio)} left; ` +
        `the log is put every ${duration(cost.flush_interval_seconds)}.`);
    }
    show(this.empty, kinds.length === 0);
    say(this.empty, cost ? "No requests to a bucket lately." : "No bucket is used, or its cost is not told.");
    say(this.note, cost ? `${dollars(cost.dollars_per_day)} a day by the last ${duration(cost.over_seconds)} · ${dollars(cost.dollars)} since the parts started` : "");
  }
}

class Findings {
  constructor() {
    this.list = element("ul", { class: "findings" });
    this.empty = empty("Nothing to do. What lies in files and logs is checked by holdfast doctor.");
    this.note = element("span", { class: "quiet" });
    this.node = card("Findings", { beside: [this.note] }, this.list, this.empty);
  }

  update(found) {
    keyed(this.list, found, (each) => `${each.code} ${each.subject}`, () => element(
      "li", {}, element("span", { class: "dot" }),
      element("span", {}, element("strong"), " ", element("span"), " ", element("code", { class: "quiet" })),
      element("span", { class: "advice" }),
    ), (node, each) => {
      const [dot, text, advice] = node.children;
      dot.className = `dot ${SEVERITIES[each.severity] ?? ""}`;
      say(text.children[0], each.subject);
      say(text.children[1], each.text);
      say(text.children[2], each.code);
      say(advice, each.advice);
    });
    const worse = found.filter((each) => each.severity !== "note").length;
    say(this.note, found.length ? `${worse} to look at, ${found.length - worse} to know` : "");
    show(this.empty, found.length === 0);
  }
}

class Events {
  constructor() {
    this.list = element("ol");
    this.log = element("div", { class: "log", role: "log", "aria-live": "polite", "aria-label": "Events, the newest first" }, this.list);
    this.empty = empty("Nothing has happened since this gateway began to watch. Events come here as they happen.");
    this.node = card("Events", {}, this.log, this.empty);
  }

  add(event) {
    show(this.empty, false);
    // Who cannot use a mouse must be able to scroll it.
    this.log.tabIndex = 0;
    this.list.prepend(element(
      "li", {}, element("time", { text: clock(event.time) }),
      element("span", { class: `dot ${SEVERITIES[event.severity] ?? ""}` }),
      element("span", {}, element("strong", { text: event.subject }), ` ${event.text}`),
    ));
    if (this.list.children.length > KEPT_EVENTS) this.list.lastChild.remove();
  }
}
