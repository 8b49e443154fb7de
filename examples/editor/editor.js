// The page: a text area that shows a Sequence, who is here, with their carets, and a chat.
import { Outbox, follow, randomId, send, watch } from "./gateway.js";
import { Sequence } from "./sequence.js";

const ids = ["text", "name", "state", "people", "carets", "chat", "draft"];
const [text, me, state, people, carets, chat, draft] = ids.map((id) => document.getElementById(id));
const options = new URLSearchParams(location.search);
const gateway = options.get("gateway") ?? "http://127.0.0.1:4280";
const page = `editor.${options.get("page") ?? "welcome"}`;
const [site, present, heard] = [randomId(), new Map(), new Set()];
const sequence = new Sequence(site);
let [shown, incoming, isComposing, isLive] = ["", [], false, false];

const showState = soon(300, () => {
  const [error, count] = [edits.error ?? says.error, edits.waiting.length + says.waiting.length];
  const live = error ? `Not saved: ${error.message}` : count ? "Saving" : "All changes saved";
  const away = text.disabled ? `No answer from ${gateway}` : `Offline. Unsaved: ${count || "none"}`;
  state.textContent = isLive || error ? live : away;
  state.className = error ? "bad" : isLive ? "good" : "away";
});
const edits = new Outbox(`${gateway}/v1/streams/${page}.edits`, showState);
const says = new Outbox(`${gateway}/v1/streams/${page}.chat`, showState);

// Your own edits: the text as it is now, compared with the one before, back from the caret.
text.addEventListener("input", () => {
  const [now, longest] = [text.value, Math.min(shown.length, text.value.length)];
  const behind = Math.min(longest, now.length - text.selectionEnd);
  let [start, end] = [0, 0];
  while (end < behind && now.at(-1 - end) === shown.at(-1 - end)) end++;
  while (start < longest - end && now[start] === shown[start]) start++;
  if (/[\uD800-\uDBFF]/.test(now[start - 1])) start--; // no half of an emoji
  if (end && /[\uDC00-\uDFFF]/.test(now.at(-end))) end--;
  const [gone, typed] = [shown.length - end - start, now.slice(start, now.length - end)];
  const made = gone ? [sequence.remove(start, gone)] : [];
  if (typed) made.push(sequence.insert(sequence.idBefore(start), typed));
  shown = now;
  edits.add({ site, made });
  showCarets();
});

// Those of others come into the text together, and not while you compose a character.
const showText = soon(15, () => {
  if (isComposing) return;
  const places = [text.selectionStart, text.selectionEnd].map((index) => sequence.idBefore(index));
  for (const operation of incoming.splice(0)) {
    try { sequence.apply(operation); } catch (error) { console.warn("no operation:", error); }
  }
  shown = sequence.text;
  if (text.value !== shown) {
    text.value = shown;
    text.setSelectionRange(...places.map((place) => sequence.indexAfter(place)));
  }
  showCarets();
});
text.addEventListener("compositionstart", () => (isComposing = true));
text.addEventListener("compositionend", () => showText((isComposing = false)));
const take = (edit) => edit.site !== site && showText(incoming.push(...edit.made));
follow(gateway, `${page}.edits`, take, (is) => {
  text.disabled &&= !is; // until all there is was read
  showState((isLive = is));
});

// Who is here: everybody has a key in a kv, which expires unless it is set again.
const key = `${gateway}/v1/kv/${page}.people/${site}`;
const sayHere = soon(100, () => {
  const caret = document.activeElement === text ? sequence.idBefore(text.selectionEnd) : false;
  send("PUT", `${key}?ttl_seconds=10`, { name: me.value, caret }).catch(() => {});
});
setInterval(sayHere, 4000, sayHere());
addEventListener("pagehide", () => send("DELETE", key, undefined, { keepalive: true }));
for (const event of ["selectionchange", "focusout"]) document.addEventListener(event, sayHere);
me.value = sessionStorage.name ??= ["Ada", "Alan", "Grace", "Radia"][Math.trunc(Math.random() * 4)];
me.addEventListener("input", () => sayHere((sessionStorage.name = me.value)));

const showCarets = soon(15, () => {
  const others = [...present].filter(([each]) => each !== site).map(([, person]) => person);
  people.replaceChildren(...others.map(({ name }) => coloured("li", name, name)));
  carets.textContent = `${shown}\n`;
  const at = others.map(({ name, caret }) => ({ name, index: sequence.indexAfter(caret) }));
  // From the last on, since each divides what is before it.
  for (const { name, index } of at.sort((one, other) => other.index - one.index)) {
    if (index >= 0) carets.firstChild.splitText(index).before(coloured("span", name, name));
  }
});
watch(gateway, `${page}.people`, present, showCarets);

draft.form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (draft.value.trim()) says.add({ id: randomId(), name: me.value, words: draft.value });
  draft.value = "";
});
follow(gateway, `${page}.chat`, ({ id, name, words }, time) => {
  if (heard.has(id) || !heard.add(id)) return; // stored again after its key was forgotten
  const when = new Date(time).toLocaleTimeString([], { timeStyle: "short" });
  const [who, what] = [coloured("b", name, name), coloured("p", name, words)];
  chat.append(coloured("article", name, who, ` ${when}`, what));
  chat.scrollTop = chat.scrollHeight;
});

/** Return a function that does `work` once within so many ms, however often it is called. */
function soon(milliseconds, work) {
  let timer = 0;
  return () => (timer ||= setTimeout(() => work((timer = 0)), milliseconds));
}

/** Return an element in the colour of a name. */
function coloured(tag, name, ...children) {
  const made = document.createElement(tag);
  const sum = [...`${name}`].reduce((before, letter) => before * 31 + letter.codePointAt(0), 7);
  made.style.setProperty("--hue", (sum % 1009) * 137.5);
  made.append(...children);
  return made;
}
