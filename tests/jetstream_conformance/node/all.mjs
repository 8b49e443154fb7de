// Every public call of NATS' JavaScript clients for JetStream: `NATS_URL=... node --test all.mjs`.
// One process, so that the last test knows which calls were made.

import assert from "node:assert/strict";
import { after } from "node:test";
import { missed } from "./public_calls.mjs";
import { check, nc } from "./world.mjs";
import "./streams.mjs";
import "./publishing.mjs";
import "./consumers.mjs";
import "./kv.mjs";
import "./objects.mjs";

check("every public call was made", () => assert.deepEqual(missed(), []));

after(() => nc.close());
