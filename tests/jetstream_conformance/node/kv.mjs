// KV: values, revisions, history, watches, markers, buckets.

import assert from "node:assert/strict";
import { Base64KeyCodec, Kvm, KvWatchInclude, NoopKvCodecs } from "@nats-io/kv";
import { watched } from "./public_calls.mjs";
import { check, nc, rawClient, refused, taken, unique, until } from "./world.mjs";

const kvm = watched("Kvm", new Kvm(nc));

async function withBucket(options, body) {
  const name = unique("B");
  const kv = watched("KV", await kvm.create(name, options));
  try {
    await body(kv, name);
  } finally {
    await kv.destroy();
  }
}

const entry = (one) => watched("KvEntry", one);
const keys = async (kv, filter) => (await taken(await kv.keys(filter))).sort();

check("put, get, create, update and their revisions", () =>
  withBucket({ history: 5 }, async (kv, bucket) => {
    assert.equal(await kv.get("a"), null);
    assert.equal(await kv.create("a", "1"), 1);
    await refused(kv.create("a", "1"), 10071);
    assert.equal(await kv.update("a", "2", 1), 2);
    await refused(kv.update("a", "3", 1), 10071);
    assert.equal(await kv.put("a", '{"n":3}'), 3);
    assert.equal(await kv.put("b.c", "x", { previousSeq: 0 }), 4);
    await refused(kv.put("b.c", "y", { previousSeq: 1 }), 10071);
    const last = entry(await kv.get("a"));
    assert.deepEqual(last.json(), { n: 3 });
    assert.equal(last.string(), '{"n":3}');
    assert.deepEqual(
      [last.bucket, last.key, last.revision, last.operation, last.length],
      [bucket, "a", 3, "PUT", 7],
    );
    assert.equal((await kv.get("a", { revision: 2 })).string(), "2");
    assert.equal(await kv.get("a", { revision: 4 }), null);
  }));

check("delete and purge, and a key made again", () =>
  withBucket({ history: 5 }, async (kv) => {
    await kv.put("a", "1");
    await kv.put("a", "2");
    await kv.delete("a");
    assert.equal((await kv.get("a")).operation, "DEL");
    assert.equal(await kv.create("a", "3"), 4);
    await refused(kv.delete("a", { previousSeq: 1 }));
    await kv.purge("a");
    assert.equal((await kv.get("a")).operation, "PURGE");
    assert.equal((await taken(await kv.history({ key: "a" }))).length, 1);
    await kv.put("a", "4");
    await kv.purge("a", { previousSeq: 6 });
    assert.equal(await kv.create("a", "5"), 8);
  }));

check("keys and history, of all and of some", () =>
  withBucket({ history: 3 }, async (kv) => {
    assert.deepEqual(await keys(kv), []);
    for (const text of ["1", "2", "3", "4"]) await kv.put("a.x", text);
    await kv.put("a.y", "1");
    await kv.put("b", "1");
    await kv.put("gone", "1");
    await kv.delete("gone");
    assert.deepEqual(await keys(kv), ["a.x", "a.y", "b"]);
    assert.deepEqual(await keys(kv, "a.*"), ["a.x", "a.y"]);
    assert.deepEqual(await keys(kv, ["a.y", "b"]), ["a.y", "b"]);
    const history = await taken(await kv.history({ key: "a.x" }));
    assert.deepEqual(history.map((each) => each.string()), ["2", "3", "4"]);
    assert.equal(history.at(-1).delta, 0);
    const all = await taken(await kv.history());
    assert.equal(all.length, 7);
  }));

check("watches: values first, then changes; updates only; history; from a revision", () =>
  withBucket({ history: 3 }, async (kv) => {
    await kv.put("a", "1");
    await kv.put("a", "2");
    await kv.put("b", "1");
    const all = await kv.watch();
    const first = taken(all, 3);
    await kv.put("a", "3");
    const seen = await first;
    assert.deepEqual(
      seen.map((each) => [each.key, each.revision]).slice(-1),
      [["a", 4]],
    );
    const updates = taken(await kv.watch({ include: KvWatchInclude.UpdatesOnly }), 1);
    const history = await taken(
      await kv.watch({ key: "a", include: KvWatchInclude.AllHistory }),
      3,
    );
    assert.deepEqual(history.map((each) => each.revision), [1, 2, 4]);
    await kv.delete("b");
    assert.deepEqual((await updates).map((each) => each.operation), ["DEL"]);
    const late = await taken(await kv.watch({ resumeFromRevision: 4 }), 2);
    assert.deepEqual(late.map((each) => each.revision), [4, 5]);
    const lean = await taken(await kv.watch({ key: ["a"], headers_only: true }), 1);
    assert.deepEqual([lean[0].value.length, lean[0].length], [0, 1]);
    const live = taken(await kv.watch({ key: ["b", "c"], ignoreDeletes: true }), 1);
    await kv.put("c", "1");
    assert.equal((await live)[0].key, "c");
  }));

check("markers are purged, and expire", async () => {
  await withBucket({ history: 3 }, async (kv) => {
    await kv.put("a", "1");
    await kv.put("b", "1");
    await kv.delete("a");
    assert.equal((await kv.purgeDeletes(-1)).purged >= 1, true);
    assert.equal(await kv.get("a"), null);
    assert.equal((await kv.get("b")).string(), "1");
  });
  await withBucket({ history: 3, markerTTL: 2000 }, async (kv) => {
    assert.equal((await kv.status()).markerTTL, 2000);
    await kv.create("short", "1", "1s");
    await until(async () => {
      const one = await kv.get("short");
      return one === null || one.operation !== "PUT";
    }, "it expired");
    await kv.put("a", "1");
    await kv.purge("a", { ttl: "1s" });
    await until(async () => (await kv.get("a")) === null, "its marker expired");
  });
});

check("values expire with their bucket's ttl", () =>
  withBucket({ ttl: 1000 }, async (kv) => {
    await kv.put("a", "1");
    await until(async () => (await kv.get("a")) === null, "it expired");
  }));

check("status, limits, opening and listing buckets", async () => {
  const options = {
    description: "a test",
    history: 2,
    max_bytes: 100_000,
    maxValueSize: 100,
    metadata: { team: "blue" },
    compression: true,
  };
  await withBucket(options, async (kv, name) => {
    await kv.put("a", "1");
    const status = await kv.status();
    assert.deepEqual(
      [status.bucket, status.values, status.history, status.description, status.replicas],
      [name, 1, 2, "a test", 1],
    );
    assert.deepEqual([status.max_bytes, status.maxValueSize], [100_000, 100]);
    assert.equal(status.metadata.team, "blue");
    assert.equal(status.compression, true);
    assert.ok(status.size > 0 && status.streamInfo.config.name === `KV_${name}`);
    await refused(kv.put("a", "x".repeat(200)), 10054);
    const opened = await kvm.open(name);
    assert.equal((await opened.get("a")).string(), "1");
    const again = await new Kvm(rawClient).create(name, options);
    assert.equal((await again.get("a")).string(), "1");
    const listed = await taken(kvm.list());
    assert.ok(listed.some((each) => each.bucket === name));
  });
});

check("codecs of keys, and another bucket's republished changes", async () => {
  const heard = unique("heard");
  const copies = taken(nc.subscribe(`${heard}.>`), 1);
  await nc.flush();
  const codec = { key: Base64KeyCodec(), value: NoopKvCodecs().value };
  await withBucket({ codec, republish: { src: ">", dest: `${heard}.>` } }, async (kv) => {
    await kv.put("a", "1");
    assert.equal((await kv.get("a")).key, "a");
    assert.deepEqual(await keys(kv), ["a"]);
    assert.equal((await copies)[0].string(), "1");
  });
});

check("a bucket that is destroyed, and keys that are none", async () => {
  const kv = watched("KV", await kvm.create(unique("B")));
  await assert.rejects(async () => kv.put("a b", "1"));
  await assert.rejects(async () => kv.put(".a", "1"));
  assert.equal(await kv.destroy(), true);
  await refused(kv.status(), 10059);
});
