//! The crate against the published vectors, the schemas and arbitrary text.

#[cfg(test)]
mod arbitrary_yaml;
#[cfg(test)]
mod hash;
#[cfg(test)]
mod markdown;
#[cfg(test)]
mod report;
#[cfg(test)]
mod shape;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod verify;
