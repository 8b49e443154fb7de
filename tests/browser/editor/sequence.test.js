// The merge core of examples/editor, without a page: `node --test`.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Sequence } from "../../../examples/editor/sequence.js";

/** Return numbers from 0 to below `limit`, the same for each seed (mulberry32). */
function random(seed) {
  return (limit) => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) % limit;
  };
}

test("a text follows its edits as an array would", () => {
  const [below, sequence] = [random(1), new Sequence("a")];
  let text = "";
  for (let step = 0; step < 300; step++) {
    const start = below(text.length + 1);
    if (below(3)) {
      const typed = "abc\n😀xyz".slice(below(4));
      sequence.insert(sequence.idBefore(start), typed);
      text = text.slice(0, start) + typed + text.slice(start);
    } else {
      const length = below(text.length - start + 1);
      sequence.remove(start, length);
      text = text.slice(0, start) + text.slice(start + length);
    }
    assert.equal(sequence.text, text);
  }
});

test("whoever applies the same operations has the same text, in any order and also twice", () => {
  for (let seed = 1; seed <= 60; seed++) {
    const below = random(seed);
    const sites = ["a", "b", "c"].map((name) => new Sequence(name));
    // How many operations of each site each one knows. It applies one if it knows what that knew.
    const made = sites.map(() => []);
    const arrived = sites.map(() => sites.map(() => 0));
    const knows = (at, needs) => needs.every((count, from) => arrived[at][from] >= count);
    for (let step = 0; step < 60; step++) {
      const [at, from] = [below(3), below(3)];
      const [length, next] = [sites[at].text.length, made[from][arrived[at][from]]];
      if (at !== from && next && knows(at, next.needs)) {
        sites[at].apply(next.operation);
        if (!below(4)) sites[at].apply(next.operation);
        arrived[at][from]++;
      } else {
        const start = below(length + 1);
        const operation = below(3)
          ? sites[at].insert(sites[at].idBefore(start), `${step}`.repeat(1 + below(3)))
          : sites[at].remove(start, below(length - start + 1));
        made[at].push({ operation: structuredClone(operation), needs: [...arrived[at]] });
        arrived[at][at]++;
      }
    }
    sites.forEach((site) => made.flat().sort(byNeeds).forEach((each) => site.apply(each.operation)));
    for (const site of sites) assert.equal(site.text, sites[0].text, `seed ${seed}`);
  }
});

// What came before knew fewer.
function byNeeds(one, other) {
  const sum = (counts) => counts.reduce((total, count) => total + count, 0);
  return sum(one.needs) - sum(other.needs);
}

test("words typed at one place at once stay whole", () => {
  const [a, b] = [new Sequence("a"), new Sequence("b")];
  b.apply(a.insert(null, "()"));
  const [one, other] = [[], []];
  [..."hello"].forEach((unit, n) => one.push(a.insert(a.idBefore(n + 1), unit)));
  [..."there"].forEach((unit, n) => other.push(b.insert(b.idBefore(n + 1), unit)));
  one.forEach((operation) => b.apply(operation));
  other.forEach((operation) => a.apply(operation));
  assert.equal(a.text, b.text);
  assert.ok(["(hellothere)", "(therehello)"].includes(a.text), a.text);
});

test("a place stays between its neighbours while others type, also behind what was removed", () => {
  const [a, b] = [new Sequence("a"), new Sequence("b")];
  b.apply(a.insert(null, "one two"));
  const place = a.idBefore(3);
  a.apply(b.insert(null, "zero "));
  assert.equal(a.indexAfter(place), 8);
  a.apply(b.remove(5, 3));
  assert.equal(a.indexAfter(place), 5);
  assert.equal(a.indexAfter(null), 0);
  assert.equal(a.indexAfter([99, "nobody"]), -1);
});

test("operations that fit nothing change nothing", () => {
  const sequence = new Sequence("a");
  sequence.insert(null, "text");
  for (const odd of [{}, { insert: "x", id: [1, "b"], after: [9, "z"] }, { remove: [[7, "a", 3]] }]) {
    sequence.apply(odd);
  }
  assert.equal(sequence.text, "text");
  sequence.apply({ insert: "\r", id: [5, "b"], after: null });
  assert.equal(sequence.text, "\ntext");
});
