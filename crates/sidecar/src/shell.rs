//! A command as one line that a POSIX shell reads back as the same vector.

/// Returns the vector quoted for a shell (RB-MD-07).
pub fn shell_line(argv: &[String]) -> String {
    let words: Vec<String> = argv.iter().map(|argument| quote(argument)).collect();
    words.join(" ")
}

fn quote(argument: &str) -> String {
    let safe = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@=,+-".contains(&byte);
    if !argument.is_empty() && argument.bytes().all(safe) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', "'\\''"))
    }
}
