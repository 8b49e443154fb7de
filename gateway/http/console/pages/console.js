// The page: which view is shown, the live feed of the cluster, and the token.

import { follow, onUnauthorized, reason, Refusal, token, useToken } from "./api.js";
import { ConsumersView } from "./consumers.js";
import { element, say, show } from "./dom.js";
import { clock } from "./format.js";
import { OverviewView } from "./overview.js";
import { StoresView } from "./stores.js";

//: A page that nobody looks at for so long stops asking.
const HIDDEN_MS = 60_000;

const by = (id) => document.getElementById(id);
const parts = {
  main: by("main"), health: by("health"), tenant: by("tenant"), pulse: by("pulse"),
  trouble: by("trouble"), dialog: by("token-dialog"), field: by("token-field"), why: by("token-reason"),
};

class Console {
  constructor() {
    this.feed = null;
    this.hidden = 0;
    this.lastEvent = 0;
    this.watch = null;
    this.overview = new OverviewView();
    this.view = null;
    this.known = false;
  }

  start() {
    onUnauthorized((refusal) => this.askForToken(refusal.message));
    by("token-button").addEventListener("click", () => this.askForToken());
    by("token-form").addEventListener("submit", () => this.useToken(parts.field.value.trim()));
    by("token-forget").addEventListener("click", () => this.useToken(""));
    by("token-cancel").addEventListener("click", () => parts.dialog.close());
    window.addEventListener("hashchange", () => this.route(true));
    document.addEventListener("visibilitychange", () => this.watchVisibility());
    this.route(false);
    this.follow();
  }

  route(moved) {
    const [, name = "", ...rest] = location.hash.slice(1).split("/");
    const names = rest.map(decoded);
    this.view?.close?.();
    if (name === "stores") this.view = new StoresView(names);
    else if (name === "consumers") this.view = new ConsumersView(names);
    else this.view = null;
    const shown = name === "stores" || name === "consumers" ? name : "overview";
    for (const link of document.querySelectorAll("nav [data-view]")) {
      if (link.dataset.view === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const title = { overview: "Overview", stores: names[1] ?? "Stores", consumers: "Consumers" }[shown];
    document.title = `${title} · holdfast`;
    this.heading = element("h1", { class: "unseen", text: title });
    this.show();
    if (moved && !this.view?.focus?.()) parts.main.focus({ preventScroll: false });
  }

  show() {
    const waiting = () => element("p", { class: "empty", text: "Asking the cluster …" });
    const shown = this.view?.node ?? (this.known ? this.overview.node : waiting());
    parts.main.replaceChildren(this.heading, shown);
  }

  follow() {
    this.feed?.abort();
    this.feed = new AbortController();
    follow("/api/v1/live", {
      signal: this.feed.signal,
      told: (event) => this.told(event),
      state: (state) => this.connection(state),
    });
  }

  told({ event, data }) {
    const found = JSON.parse(data);
    if (event === "history") {
      // Another gateway counts its events anew.
      if (found.watch !== this.watch) this.lastEvent = 0;
      this.watch = found.watch;
      this.overview.history(found);
    } else if (event === "happened") {
      if (found.id > this.lastEvent) this.overview.happened(found);
      this.lastEvent = Math.max(this.lastEvent, found.id);
    } else if (event === "unavailable") this.unavailable(found);
    else if (event === "overview") {
      parts.trouble.replaceChildren();
      this.overview.update(found);
      say(parts.tenant, `tenant ${found.tenant}`);
      say(parts.pulse, clock(found.time));
      this.health(found);
      if (!this.known) {
        this.known = true;
        this.show();
      }
    }
  }

  health({ findings, totals }) {
    const worst = findings.find((each) => each.severity !== "note");
    const live = totals.servers_by_state.live ?? 0;
    const well = `${live} server${live === 1 ? "" : "s"} live, all well`;
    const more = findings.filter((each) => each.severity !== "note").length - 1;
    const text = worst ? `${worst.subject}: ${worst.text}${more > 0 ? `, and ${more} more` : ""}` : well;
    this.say(worst ? { warning: "warn", critical: "bad" }[worst.severity] : "good", text);
  }

  say(level, text) {
    const shown = `${level} ${text}`;
    if (parts.health.dataset.shown === shown) return;
    parts.health.dataset.shown = shown;
    parts.health.replaceChildren(element("span", { class: `dot ${level}` }), element("span", { text }));
  }

  unavailable({ code, detail }) {
    this.say("bad", "the cluster does not answer");
    this.trouble("The coordinator does not answer", `${detail} (${code}). It is asked again every few seconds.`);
  }

  connection(state) {
    if (state === "open") {
      parts.trouble.replaceChildren();
      return;
    }
    const stopped = state instanceof Refusal && state.status < 500 && state.status !== 429;
    this.say("bad", stopped ? "not connected" : "the gateway does not answer");
    if (stopped) this.trouble("The gateway refuses this page", reason(state));
    else this.trouble("The gateway does not answer", "It is asked again every few seconds.");
  }

  trouble(title, detail) {
    const text = `${title}${detail}`;
    if (parts.trouble.textContent === text) return;
    parts.trouble.replaceChildren(element(
      "div", { class: "trouble" }, element("strong", { text: title }), element("span", { text: detail }),
    ));
    if (!this.known && !this.view) {
      parts.main.replaceChildren(element("p", { class: "empty", text: "Nothing is known of the cluster yet." }));
    }
  }

  askForToken(why) {
    say(parts.why, why ?? "The page sends it with every request, and forgets it when you close this tab.");
    show(by("token-forget"), Boolean(token()));
    if (!parts.dialog.open) {
      parts.field.value = "";
      parts.dialog.showModal();
    }
  }

  useToken(text) {
    useToken(text);
    parts.dialog.close();
    this.known = false;
    this.watch = null;
    this.overview = new OverviewView();
    this.route(false);
    this.follow();
  }

  watchVisibility() {
    clearTimeout(this.hidden);
    if (document.hidden) {
      this.hidden = setTimeout(() => { this.feed.abort(); this.feed = null; }, HIDDEN_MS);
    } else if (!this.feed) this.follow();
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

new Console().start();
