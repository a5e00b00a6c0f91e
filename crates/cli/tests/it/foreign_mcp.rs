//! The tools at `/mcp` by a client that we did not write: the SDK of the MCP project, from npm.

use std::process::Command;

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
        r#"{"tools":["akashik_attune","akashik_compact","akashik_deregister","akashik_detect","akashik_merge","akashik_record","akashik_register","akashik_replay"]}"#,
        r#"{"joined":"registered"}"#,
        r#"{"recorded":"accepted"}"#,
        r#"{"told":1}"#,
        r#"{"refused":[true,"INVALID_REQUEST"]}"#,
        r#"{"unknown":-32602}"#,
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{talk}");
}
