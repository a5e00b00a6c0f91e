//! The addon and the package around it, as Node sees them.

#[cfg(test)]
mod package;
