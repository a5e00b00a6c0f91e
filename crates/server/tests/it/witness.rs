//! A reader that we did not write follows the receipt log: checkpoint, tiles and proofs as published crates see them.

use std::collections::BTreeMap;

use canon::Digest;
use receipts::KeySet;
use receipts::note::{KeyUse, NoteKey};
use serde_json::Value;
use signed_note::{Note, StandardVerifier, VerifierList};
use tlog_tiles::{
    Checkpoint, Hash, Tile, TileHashReader, TileReader, check_record, check_tree, prove_record,
    prove_tree, record_hash,
};

use crate::fixture::{Api, Server, id};

/// Tiles that were fetched beforehand, by their place.
struct Fetched(BTreeMap<String, Vec<u8>>);

impl TileReader for Fetched {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[Tile]) -> Result<Vec<Vec<u8>>, tlog_tiles::Error> {
        let read = |tile: &Tile| self.0.get(&tile.path()).cloned();
        let found: Option<Vec<Vec<u8>>> = tiles.iter().map(read).collect();
        found.ok_or(tlog_tiles::Error::InvalidTile)
    }

    fn save_tiles(&self, _: &[Tile], _: &[Vec<u8>]) {}
}

async fn open(api: &Api, path: &str) -> (String, Vec<u8>) {
    let response = api.http.get(format!("{}{path}", api.url)).send().await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let cache = response.headers()["cache-control"].to_str().unwrap();
    let cache = cache.to_owned();
    (cache, response.bytes().await.unwrap().to_vec())
}

/// Fetches the checkpoint and checks its signature.
async fn checkpoint(api: &Api) -> Checkpoint {
    let (_, bytes) = open(api, "/tlog/checkpoint").await;
    let (_, jwks) = open(api, "/.well-known/jwks.json").await;
    let keys = KeySet::from_jwks(&jwks).unwrap();
    let note = Note::from_bytes(&bytes).unwrap();
    let head = Checkpoint::from_bytes(note.text()).unwrap();
    let key = NoteKey::new(head.origin(), KeyUse::Note, keys.keys()[0].bytes).unwrap();
    let verifier = StandardVerifier::new(&key.text()).unwrap();
    let known = VerifierList::new(vec![Box::new(verifier)]);
    let (signed, others) = note.verify(&known).unwrap();
    assert_eq!((signed.len(), others.len()), (1, 0));
    head
}

/// Fetches every tile of a tree.
async fn tiles(api: &Api, size: u64) -> Fetched {
    let mut fetched = BTreeMap::new();
    for tile in Tile::new_tiles(8, 0, size) {
        // The C2SP layout leaves the height out: it is always 8.
        let path = tile.path().replacen("tile/8/", "/tlog/tile/", 1);
        let (cache, bytes) = open(api, &path).await;
        assert_eq!(bytes.len(), tile.width() as usize * 32, "{path}");
        assert_eq!(cache.contains("immutable"), tile.width() == 256, "{path}");
        fetched.insert(tile.path(), bytes);
    }
    Fetched(fetched)
}

fn hashes(path: &Value) -> Vec<Hash> {
    let list = path.as_array().unwrap().iter();
    list.map(|hash| Hash(*Digest::parse(hash.as_str().unwrap()).unwrap().as_bytes()))
        .collect()
}

async fn run_tasks(api: &Api, session: &str, count: usize) -> Vec<Value> {
    let mut receipts = Vec::new();
    for _ in 0..count {
        let task = api.task(session, "agent").await;
        let (_, list) = api.get(&format!("/v1/tasks/{}/receipts", id(&task))).await;
        receipts.push(list["data"][0].clone());
    }
    receipts
}

#[tokio::test]
async fn a_published_reader_accepts_checkpoint_tiles_and_proofs() {
    let server = Server::start().await;
    let api = server.client();
    let session = api.session().await;
    let mut receipts = run_tasks(&api, &session, 3).await;
    let (_, _) = api
        .get(&format!("/v1/receipts/{}/proof", id(&receipts[2])))
        .await;
    let old = checkpoint(&api).await;
    assert_eq!(old.size(), 3);
    receipts.extend(run_tasks(&api, &session, 260).await);
    let last = receipts.last().unwrap();
    let (_, _) = api.get(&format!("/v1/receipts/{}/proof", id(last))).await;
    let head = checkpoint(&api).await;
    let (size, root) = (head.size(), *head.hash());
    assert_eq!(size, 263);
    let fetched = tiles(&api, size).await;
    let reader = TileHashReader::new(size, root, &fetched);
    for (index, receipt) in receipts.iter().enumerate().step_by(37) {
        let hash = receipt["chain"]["receipt_hash"].as_str().unwrap();
        let leaf = record_hash(Digest::parse(hash).unwrap().as_bytes());
        let theirs = prove_record(size, index as u64, &reader).unwrap();
        check_record(&theirs, size, root, index as u64, leaf).unwrap();
        let (_, ours) = api
            .get(&format!("/v1/receipts/{}/proof", id(receipt)))
            .await;
        assert_eq!(ours["leaf_index"], index as u64);
        assert_eq!(ours["tree_size"], size);
        let ours = hashes(&ours["path"]);
        check_record(&ours, size, root, index as u64, leaf).unwrap();
        assert_eq!(ours, theirs);
        // It can say no.
        assert!(check_record(&ours, size, root, index as u64 + 1, leaf).is_err());
    }
    let theirs = prove_tree(size, old.size(), &reader).unwrap();
    check_tree(&theirs, size, root, old.size(), *old.hash()).unwrap();
    let path = format!(
        "/v1/receipt-batches/consistency?from={}&to={size}",
        old.size()
    );
    let (_, ours) = api.get(&path).await;
    assert_eq!(hashes(&ours["path"]), theirs);
    assert!(check_tree(&theirs, size, *old.hash(), old.size(), root).is_err());
}
