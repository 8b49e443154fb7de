// A text that several people edit at once: a replicated growable array.
//
// Every UTF-16 unit is an item with an id, [count, site], that no other item has. An item stands
// behind the one it was typed after; of items typed after the same one, that with the greatest id
// comes first. Removed items stay, invisible. So all who apply the same operations, each after
// those it refers to, have the same text, in whatever order. Applying one again changes nothing.
//
// Operations: {insert: "text", id: [count, site], after: [count, site] | null}, and
// {remove: [[count, site, length], ...]}: so many items from this id on.


export class Sequence {
  #items = [];
  #byId = new Map();
  #count = 0;
  #known = null;

  constructor(site) {
    this.site = site;
  }

  get #visible() { return (this.#known ??= this.#items.filter((item) => !item.removed)); }
  get text() {
    return this.#visible.map((item) => item.unit).join("");
  }

  /** Insert a text behind the item `after`, and return the operation for everybody else. */
  insert(after, text) {
    return this.apply({ insert: text, id: [this.#count + 1, this.site], after });
  }

  /** Remove `length` visible items from `index` on, and return the operation. */
  remove(index, length) {
    const remove = [];
    for (const { count, site } of this.#visible.slice(index, index + length)) {
      const run = remove.at(-1);
      if (run?.[1] === site && run[0] + run[2] === count) run[2]++;
      else remove.push([count, site, 1]);
    }
    return this.apply({ remove });
  }

  /** Apply an operation, and return it. One that refers to unknown items changes nothing. */
  apply(operation) {
    const { insert = "", id, after, remove = [] } = operation;
    this.#known = null;
    for (const item of remove.flatMap((run) => this.#run(...run))) item.removed = true;
    const left = after ? this.#items.indexOf(this.#byId.get(String(after))) : -1;
    if (!insert || this.#byId.has(String(id)) || (after && left < 0)) return operation;
    const [count, site] = id;
    const isGreater = (item) => item.count > count || (item.count === count && item.site > site);
    let place = left + 1;
    while (place < this.#items.length && isGreater(this.#items[place])) place++;
    // A text area shows a carriage return as a line feed.
    const units = insert.replaceAll("\r", "\n").split("");
    const items = units.map((unit, n) => ({ count: count + n, site, unit, removed: false }));
    this.#items = [...this.#items.slice(0, place), ...items, ...this.#items.slice(place)];
    for (const item of items) this.#byId.set(`${item.count},${site}`, item);
    this.#count = Math.max(this.#count, count + insert.length - 1);
    return operation;
  }

  /** Return the id of the item before `index`: a place that moves with the text around it. */
  idBefore(index) {
    const item = this.#visible[index - 1];
    return item ? [item.count, item.site] : null;
  }

  /** Return the index behind the item `id`, or where that was; -1 if there is none. */
  indexAfter(id) {
    const place = this.#items.indexOf(this.#byId.get(String(id)));
    if (id !== null && place < 0) return -1;
    return this.#items.slice(0, place + 1).filter((item) => !item.removed).length;
  }

  #run(count, site, length) {
    const size = Math.min(length, this.#items.length);
    const items = Array.from({ length: size }, (_, n) => this.#byId.get(`${count + n},${site}`));
    return items.filter(Boolean);
  }
}
