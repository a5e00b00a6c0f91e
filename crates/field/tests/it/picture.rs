//! The picture of a causal chain.

use field::{Code, Depth, Graph, Level, Limits, Reader, Target, TargetType};
use serde_json::json;

use crate::common::{Lab, related};

fn graph(lab: &Lab, kind: TargetType, id: &str) -> Result<Graph, Code> {
    let target = Target {
        kind,
        id: id.into(),
        depth: Depth::FullTrace,
    };
    let reader = Reader {
        text_of: &|unit| lab.field.text_of(unit),
        sees: &|_| true,
    };
    lab.field
        .log()
        .graph(&target, &reader, &Limits::standard())
        .map_err(|refusal| refusal.code())
}

#[test]
fn a_conflict_is_drawn_with_its_units_and_its_merge() {
    let mut lab = Lab::with_agents(Level::Standard, &["a", "b"]);
    let (_, _, conflict) = lab.conflict(("a", 0.5), ("b", 0.4));
    lab.merge(
        "a",
        &conflict,
        "synthesis",
        json!({"synthesis": "say \"both\" \\ & <neither>"}),
    )
    .unwrap();
    let graph = graph(&lab, TargetType::Conflict, &conflict).unwrap();
    assert_eq!(
        graph.size(),
        (5, 7),
        "a contradiction, two units in a conflict, a merge, a synthesis of two"
    );
    let dot = graph.to_dot();
    assert!(dot.contains("n0 -> n1 [label=\"contradicts\"]"), "{dot}");
    assert!(
        dot.contains("n2 -> n3 [label=\"merge\"]")
            && dot.contains("n3 -> n4 [label=\"synthesis\"]"),
        "{dot}"
    );
    assert!(dot.contains(r#"say \"both\" \\ & <neither>"#), "{dot}");
    let svg = graph.to_svg();
    assert!(
        svg.contains("say &quot;both&quot; \\ &amp; &lt;neither&gt;"),
        "{svg}"
    );
}

#[test]
fn labels_of_fifty_nodes_do_not_overlap() {
    let mut lab = Lab::with_agents(Level::Standard, &["a"]);
    let mut last = lab.note("a", "start", &[]);
    for number in 1..50 {
        let words = ["long words ", "長い言葉 "][number % 2];
        let content = format!("{number} {}", words.repeat(20));
        last = lab.unit(
            "a",
            "finding",
            &content,
            json!({"relations": related(&[("depends_on", &last)])}),
        );
    }
    let svg = graph(&lab, TargetType::MemoryUnit, &last).unwrap().to_svg();
    let number = |line: &str, name: &str| -> usize {
        let rest = line.split(&format!(" {name}=\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let labels: Vec<&str> = svg
        .lines()
        .filter(|line| line.starts_with("<text"))
        .collect();
    assert_eq!(labels.len(), 51, "a title and fifty labels");
    let rows: Vec<usize> = labels.iter().map(|line| number(line, "y")).collect();
    assert!(
        rows.windows(2).all(|pair| pair[1] >= pair[0] + 18),
        "a line of 13 points needs less: {rows:?}"
    );
    let (width, height) = (number(&svg, "width"), number(&svg, "height"));
    for line in labels {
        let text = line.split('>').nth(1).unwrap().split('<').next().unwrap();
        let columns = |character: char| if character.is_ascii() { 1 } else { 2 };
        let columns: usize = text.chars().map(columns).sum();
        assert!(number(line, "x") + columns * 8 <= width, "{text}");
        assert!(number(line, "y") < height);
    }
}

#[test]
fn what_cannot_be_replayed_cannot_be_drawn() {
    let mut lab = Lab::with_agents(Level::Full, &["a", "b"]);
    assert_eq!(
        graph(&lab, TargetType::MemoryUnit, "none"),
        Err(Code::UnitNotFound)
    );
    // What is hidden has a node without words and no edges.
    let hidden = lab.note("a", "hidden words", &[]);
    lab.session = Some("s".into());
    let inner = lab.note("a", "inner words", &[("depends_on", &hidden)]);
    let target = Target {
        kind: TargetType::MemoryUnit,
        id: inner,
        depth: Depth::Summary,
    };
    let reader = Reader {
        text_of: &|unit| lab.field.text_of(unit),
        sees: &|session| session.is_none(),
    };
    let graph = lab
        .field
        .log()
        .graph(&target, &reader, &Limits::standard())
        .unwrap();
    assert_eq!(graph.size(), (2, 0));
    let dot = graph.to_dot();
    assert!(
        dot.contains("redacted: (redacted)") && !dot.contains("inner words"),
        "{dot}"
    );
    let limits = Limits {
        replay_events_max: 1,
        ..Limits::standard()
    };
    assert_eq!(
        lab.field
            .log()
            .graph(&target, &reader, &limits)
            .unwrap_err()
            .code(),
        Code::ReplayTooLarge
    );
}
