//! Link arguments of an addon, where a platform needs some.

fn main() {
    napi_build::setup();
}
