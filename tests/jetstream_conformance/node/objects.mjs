// Object stores: blobs and streams in chunks, metadata, links, watches, seals.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { headers } from "@nats-io/transport-node";
import { Objm } from "@nats-io/obj";
import { watched } from "./public_calls.mjs";
import { check, nc, rawClient, refused, streams, taken, unique } from "./world.mjs";

const objm = watched("Objm", new Objm(nc));

async function withStore(options, body) {
  const name = unique("O");
  const store = watched("ObjectStore", await objm.create(name, options));
  try {
    await body(store, name);
  } finally {
    await store.destroy();
  }
}

function readable(bytes) {
  return new ReadableStream({
    start(controller) {
      controller.enqueue(bytes);
      controller.close();
    },
  });
}

/** Return the bytes of an object as an Uint8Array, and no subclass of it. */
const blob = async (store, name) => new Uint8Array(await store.getBlob(name));
const bytesOf = (length) => Uint8Array.from({ length }, (_, index) => index % 251);

check("a large object in chunks, as a stream and as a blob, with its digest", () =>
  withStore({}, async (store, bucket) => {
    const content = bytesOf(600_000);
    const meta = { name: "big", description: "a test", metadata: { team: "blue" } };
    const info = await store.put(meta, readable(content));
    assert.deepEqual([info.size, info.chunks, info.bucket], [600_000, 5, bucket]);
    const digest = createHash("sha256").update(content).digest("base64url");
    assert.equal(info.digest.replaceAll("=", ""), `SHA-256${digest}`.replaceAll("=", ""));
    const result = await store.get("big");
    const parts = [];
    for await (const part of result.data) parts.push(Buffer.from(part));
    assert.equal((await result.error) ?? null, null);
    assert.deepEqual(new Uint8Array(Buffer.concat(parts)), content);
    assert.deepEqual(await blob(store, "big"), content);
    const known = await store.info("big");
    assert.deepEqual([known.description, known.metadata], ["a test", { team: "blue" }]);
    assert.equal(await store.get("none"), null);
    assert.equal(await store.getBlob("none"), null);
    assert.equal(await store.info("none"), null);
  }));

check("an object replaced, an empty one, one with headers and chunks of its own size", () =>
  withStore({}, async (store, bucket) => {
    await store.putBlob({ name: "a" }, bytesOf(300_000));
    await store.putBlob({ name: "a" }, bytesOf(10));
    assert.deepEqual(await blob(store, "a"), bytesOf(10));
    const left = await streams.info(`OBJ_${bucket}`);
    assert.equal(left.state.messages, 2);
    await store.putBlob({ name: "empty" }, new Uint8Array(0));
    assert.equal((await store.getBlob("empty")).length, 0);
    const block = headers();
    block.append("Colour", "red");
    block.append("Colour", "blue");
    const meta = { name: "h", headers: block, options: { max_chunk_size: 1000 } };
    assert.equal((await store.putBlob(meta, bytesOf(2500))).chunks, 3);
    assert.deepEqual((await store.info("h")).headers.values("Colour"), ["red", "blue"]);
    await refused(store.putBlob({ name: "a" }, bytesOf(1), { previousRevision: 1 }));
  }));

check("lists, deletes and updates", () =>
  withStore({}, async (store) => {
    assert.deepEqual(await store.list(), []);
    await store.putBlob({ name: "a" }, bytesOf(1));
    await store.putBlob({ name: "b" }, bytesOf(2));
    assert.deepEqual((await store.list()).map((each) => each.name).sort(), ["a", "b"]);
    const removed = await store.delete("a");
    assert.deepEqual([removed.success, removed.purged], [true, 1]);
    assert.deepEqual((await store.list()).map((each) => each.name), ["b"]);
    assert.equal((await store.info("a")).deleted, true);
    await store.update("b", { name: "c", description: "renamed" });
    assert.equal((await store.info("c")).description, "renamed");
    assert.deepEqual(await blob(store, "c"), bytesOf(2));
  }));

check("links to an object and to a store", () =>
  withStore({}, async (store) => {
    await withStore({}, async (other, otherName) => {
      const info = await other.putBlob({ name: "far" }, bytesOf(7));
      const link = await store.link("near", info);
      assert.deepEqual(link.options.link, { bucket: otherName, name: "far" });
      assert.deepEqual(await blob(store, "near"), bytesOf(7));
      const all = await store.linkStore("all", other);
      assert.equal(all.options.link.bucket, otherName);
    });
  }));

check("watches: what is there, then what comes", () =>
  withStore({}, async (store) => {
    await store.putBlob({ name: "a" }, bytesOf(1));
    await store.putBlob({ name: "gone" }, bytesOf(1));
    await store.delete("gone");
    const watching = taken(await store.watch({ ignoreDeletes: true, includeHistory: true }), 2);
    await store.putBlob({ name: "b" }, bytesOf(1));
    const seen = await watching;
    assert.deepEqual(seen.map((each) => each.name), ["a", "b"]);
    assert.equal(seen[1].isUpdate, true);
    const updates = taken(await store.watch(), 1);
    await store.putBlob({ name: "c" }, bytesOf(1));
    assert.deepEqual((await updates).map((each) => each.name), ["c"]);
  }));

check("status, listing, opening and sealing", () =>
  withStore({ description: "a test", metadata: { team: "blue" } }, async (store, name) => {
    await store.putBlob({ name: "a" }, bytesOf(1000));
    const status = await store.status();
    assert.deepEqual([status.bucket, status.description, status.sealed], [name, "a test", false]);
    assert.ok(status.size > 1000 && status.metadata.team === "blue" && status.replicas === 1);
    const listed = await taken(objm.list());
    assert.ok(listed.some((each) => each.bucket === name));
    const opened = await objm.open(name);
    assert.equal((await opened.getBlob("a")).length, 1000);
    const unchecked = await new Objm(rawClient).open(name, false);
    assert.equal((await unchecked.getBlob("a")).length, 1000);
    assert.equal((await store.seal()).sealed, true);
    await refused(store.putBlob({ name: "b" }, bytesOf(1)));
    await refused(objm.open(unique("none")));
  }));
