// The server of this project, as a process of its own: started, killed, started again on the same address and data.
import { spawn, execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** The program that the tests are run with. */
export const program = process.env.REPRISE_TEST_PROGRAM;

const clean = () => Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("REPRISE_")));

const protocol = { "harn-agents-protocol-version": "agents-protocol-2026-04-25" };

/** Starts a server in a folder of its own. */
export async function serve() {
  const home = await mkdtemp(join(tmpdir(), "reprise-node-"));
  const server = { home, data: join(home, "reprise-data"), url: null, child: null, options: [] };
  server.start = async () => {
    const listen = server.url ? new URL(server.url).host : "127.0.0.1:0";
    const env = { ...clean(), REPRISE_LIMITS_DRAIN_WINDOW_MS: "100" };
    const child = spawn(program, ["serve", "--listen", listen, ...server.options], { cwd: home, env, stdio: ["ignore", "ignore", "pipe"] });
    server.child = child;
    const exited = new Promise((resolve) => child.once("exit", resolve));
    server.exited = exited;
    let said = "";
    await new Promise((resolve, reject) => {
      child.stderr.on("data", (chunk) => {
        said += chunk;
        const found = said.match(/^reprise \S+ on (\S+?),/m);
        if (found) {
          server.url = found[1];
          resolve();
        }
      });
      exited.then(() => reject(new Error(`the server did not start: ${said}`)));
    });
    server.key = (await readFile(join(server.data, "api-key"), "utf8")).trim();
    server.approver = (await readFile(join(server.data, "approver-key"), "utf8")).trim();
  };
  server.kill = async () => {
    server.child.kill("SIGKILL");
    await server.exited;
  };
  server.close = async () => {
    await server.kill();
    await rm(home, { recursive: true, force: true });
  };
  /** Asks the server for something, with the key of the program or of the approver. */
  server.ask = async (method, path, body, key = server.key) => {
    const headers = { authorization: `Bearer ${key}`, "content-type": "application/json", ...protocol };
    const response = await fetch(server.url + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: response.status, body: await response.json() };
  };
  /** Runs the program, and returns what it printed. */
  server.run = (...args) =>
    new Promise((resolve) => {
      execFile(program, args, { cwd: home, env: clean() }, (error, stdout, stderr) => resolve({ code: error?.code ?? 0, stdout, stderr }));
    });
  await server.start();
  return server;
}

/** Waits until something holds. */
export async function until(look, ms = 15_000) {
  const end = Date.now() + ms;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error("it did not come to pass");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
