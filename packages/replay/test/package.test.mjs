// The package itself: its types, what it holds, how it loads.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { createRequire } from "node:module";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const here = dirname(fileURLToPath(import.meta.url));
const root = dirname(dirname(require.resolve("@reprise/replay")));

for (const [system, module] of [["nodenext", "nodenext"], ["bundler", "esnext"]]) {
  test(`types hold under ${system}`, () => {
    const folder = mkdtempSync(join(here, "types-"));
    try {
      cpSync(join(here, "types.ts"), join(folder, "types.mts"));
      const compilerOptions = { strict: true, exactOptionalPropertyTypes: false, noEmit: true, target: "es2022", lib: ["es2022", "dom", "dom.iterable", "dom.asynciterable", "esnext.disposable"], module, moduleResolution: system, types: ["node"], skipLibCheck: true };
      writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["types.mts"] }));
      const ran = spawnSync(process.execPath, [join(dirname(require.resolve("typescript/package.json")), "bin/tsc"), "-p", folder], { encoding: "utf8" });
      assert.equal(ran.status, 0, ran.stdout + ran.stderr);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}

test("both module systems have every name", async () => {
  const names = Object.keys(require("@reprise/replay")).sort();
  assert.deepEqual(Object.keys(await import("@reprise/replay")).sort(), names);
  const types = readFileSync(join(root, "index.d.ts"), "utf8");
  for (const name of names) assert.match(types, new RegExp(`export (function|class) ${name}\\b`));
});

test("the package has no dependencies and no scripts, and holds what it needs alone", () => {
  const manifest = require("@reprise/replay/package.json");
  assert.equal(manifest.dependencies, undefined);
  assert.equal(manifest.scripts, undefined);
  assert.deepEqual(readdirSync(root).filter((name) => name !== "README.md").sort(), ["index.d.mts", "index.d.ts", "index.mjs", "native", "package.json", "src", "testing.d.mts", "testing.d.ts", "testing.mjs"]);
});

test("importing touches neither the core nor the network, and is quick", () => {
  const program = `
    const began = process.cpuUsage();
    require("@reprise/replay");
    const { user, system } = process.cpuUsage(began);
    const took = (user + system) / 1e3;
    const loaded = Object.keys(require.cache).filter((file) => file.endsWith(".node"));
    console.log(JSON.stringify({ took, loaded }));`;
  const runs = Array.from({ length: 5 }, () => JSON.parse(execFileSync(process.execPath, ["-e", program], { cwd: here, encoding: "utf8" })));
  assert.deepEqual(runs[0].loaded, []);
  // The machine of a test is busy: time of the processor, the best of five.
  const best = Math.min(...runs.map(({ took }) => took));
  assert.ok(best < 20, `${best} ms`);
});
