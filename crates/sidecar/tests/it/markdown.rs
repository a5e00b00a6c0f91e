//! The markdown block against the vectors, and against a YAML reader.

use canon::Value;
use proptest::prelude::*;
use sidecar::{
    Ahd, General, Mode, Profile, Sidecar, canonical_text, read_sidecar, shell_block, shell_line,
    yaml_block,
};

use crate::vectors::group;

fn read(document: &Value) -> Sidecar {
    read_sidecar(document.to_string().as_bytes(), true)
        .unwrap()
        .sidecar
}

fn ahd() -> Ahd {
    match read(&group("markdown-block")[0].body["document"]) {
        Sidecar::Ahd(ahd) => *ahd,
        Sidecar::General(_) => panic!("an AHD vector"),
    }
}

/// RB-MD-01 to RB-MD-06.
#[test]
fn all_9_block_vectors_agree() {
    let vectors = group("markdown-block");
    assert_eq!(vectors.len(), 9);
    for vector in &vectors {
        let block = yaml_block(&read(&vector.body["document"]));
        let expect = &vector.body["expect"];
        assert_eq!(block, expect["block"].as_str().unwrap(), "{}", vector.id);
        let hash = canon::sha256(block.as_bytes()).to_string();
        assert_eq!(
            hash,
            expect["block_sha256"].as_str().unwrap(),
            "{}",
            vector.id
        );
    }
}

/// RB-MD-07.
#[test]
fn all_10_argv_vectors_agree() {
    let vectors = group("argv-to-shell");
    assert_eq!(vectors.len(), 10);
    for vector in &vectors {
        let argv: Vec<String> = serde_json::from_value(vector.body["argv"].clone()).unwrap();
        assert_eq!(
            shell_line(&argv),
            vector.body["expect"]["command"].as_str().unwrap()
        );
    }
}

/// RB-MD-05, RB-MD-08.
#[test]
fn the_command_comes_last_after_checkout_or_install() {
    let mut block = ahd();
    let text = |ahd: &Ahd| shell_block(&Sidecar::Ahd(Box::new(ahd.clone())));
    assert_eq!(
        text(&block),
        "```sh\ngit checkout 0123456789ab\nnpm ci && npm run build\nnode ahd eval-live demo --n 3\n```"
    );
    block.ahd_commit = None;
    block.git_dirty = None;
    assert_eq!(
        text(&block),
        "```sh\n: install ahd 0.11.0\nnode ahd eval-live demo --n 3\n```"
    );
    block.argv = vec!["a".to_owned(), "x\n````\ny".to_owned()];
    assert!(text(&block).starts_with("`````sh\n") && text(&block).ends_with("\n`````"));
    block.argv.clear();
    assert!(text(&block).contains("not recorded"));
}

fn inner(block: &str) -> &str {
    block
        .strip_prefix("```yaml ahd-replay\n")
        .and_then(|text| text.strip_suffix("```"))
        .unwrap()
}

/// Texts that tempt a YAML reader.
fn odd_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "- ", "-", ": ", ":", " #", "@", ",", "[", "]", "{", "\"", "'", "\\", "\n", "```", "true",
        "1.0", "---", "...", " ", "null", "é", "\u{feff}", "\u{85}", "\u{2028}", "\u{7f}", "\0",
        "😀", "?", "!", "%", "&a", "abc", "=", "~", "+", ".", "/",
    ]);
    prop_oneof![
        prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat()),
        any::<String>().prop_filter("empty", |text| !text.is_empty()),
    ]
}

proptest! {
    /// RB-MD-06: the block parses, and means what the sidecar says, whatever the strings hold.
    #[test]
    fn the_block_is_valid_yaml_for_any_strings(
        texts in prop::collection::vec(odd_text(), 6),
        conditions in prop::collection::vec(odd_text(), 0..4),
    ) {
        let mut block = ahd();
        block.ahd_version = texts[0].clone();
        block.node_version = texts[1].clone();
        block.platform = texts[2].clone();
        block.token.path = texts[3].clone();
        block.models[0].id = texts[4].clone();
        block.models[0].provider = texts[5].clone();
        block.conditions.requested = conditions.clone();
        for sidecar in [
            Sidecar::General(Box::new(General::import(&block, Mode::RawBytes))),
            Sidecar::Ahd(Box::new(block)),
        ] {
            let text = yaml_block(&sidecar);
            let value = canonical_text(inner(&text).as_bytes(), Profile::Jcs1)
                .unwrap_or_else(|error| panic!("{error}\n{text}"));
            let value: Value = serde_json::from_slice(&value).unwrap();
            prop_assert_eq!(&value["platform"], &texts[2]);
            prop_assert_eq!(&value["models"][0]["id"], &texts[4]);
            prop_assert_eq!(&value["models"][0]["provider"], &texts[5]);
            prop_assert_eq!(&value["models"][0]["provider_request_ids"], "2 captured");
            prop_assert_eq!(&value["conditions"]["requested"], &serde_json::json!(conditions));
            if matches!(sidecar, Sidecar::Ahd(_)) {
                prop_assert_eq!(&value["ahd_version"], &texts[0]);
                prop_assert_eq!(&value["token"]["path"], &texts[3]);
            } else {
                prop_assert_eq!(&value["tool"]["version"], &texts[0]);
                prop_assert_eq!(&value["inputs"][0]["path"], &texts[3]);
            }
        }
    }
}
