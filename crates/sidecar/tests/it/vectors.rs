//! Reads the published vectors; shared by the test binaries beside it.

use canon::Value;

pub(crate) struct Vector {
    pub(crate) id: String,
    pub(crate) tier: String,
    pub(crate) body: Value,
}

impl Vector {
    pub(crate) fn input(&self) -> Vec<u8> {
        unhex(self.body["input_hex"].as_str().unwrap())
    }
}

pub(crate) fn group(name: &str) -> Vec<Vector> {
    let text = include_bytes!("../../../../conformance/vectors/ahd/vectors.json");
    let document: Value = serde_json::from_slice(text).unwrap();
    document["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|vector| vector["group"] == name)
        .map(|vector| Vector {
            id: vector["id"].as_str().unwrap().to_owned(),
            tier: vector["tier"].as_str().unwrap().to_owned(),
            body: vector.clone(),
        })
        .collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}
