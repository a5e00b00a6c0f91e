//! HTTPS with a certificate of one's own.

use testing::process::Server;

use crate::world::World;

fn certificate(world: &World) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(world.home.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(
        world.home.path().join("key.pem"),
        made.signing_key.serialize_pem(),
    )
    .unwrap();
}

#[test]
fn ap_rest_02_https_works_for_who_trusts_the_certificate() {
    let world = World::new();
    certificate(&world);
    let server = world.serve_with(&[
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        "cert.pem",
        "--tls-key",
        "key.pem",
    ]);
    assert!(
        server.url.starts_with("https://127.0.0.1:"),
        "{}",
        server.url
    );
    // The key was written with the mode that files have, for everybody to read.
    assert!(
        server.greeting.contains("can read the TLS key `key.pem`"),
        "{}",
        server.greeting
    );
    let stranger = world.run(&["task", "list"]);
    assert_eq!(stranger.code, 2, "{stranger:?}");
    assert!(stranger.stderr.contains("with --ca"), "{stranger:?}");
    // Whoever mixes up http and https, or has a key of another server, reads what to do.
    let mixed = server.url.replace("https://", "http://");
    let mixed = world.run(&["task", "list", "--url", &mixed]);
    assert!(
        mixed.stderr.contains("write https:// in --url"),
        "{mixed:?}"
    );
    let plain = World::new();
    let other = plain.serve();
    let mixed = other.url.replace("http://", "https://");
    let mixed = plain.run(&["task", "list", "--url", &mixed]);
    assert!(mixed.stderr.contains("write http:// in --url"), "{mixed:?}");
    let unknown = plain.run(&["task", "list", "--key", "rpk_of_another_server"]);
    assert!(
        unknown.stderr.contains("mistyped, expired, revoked"),
        "{unknown:?}"
    );
    let said = world.run(&["task", "submit", "Hello", "--watch", "--ca", "cert.pem"]);
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn f15_a_tls_key_of_ones_own_is_taken_without_a_word() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new();
    certificate(&world);
    let file = world.home.path().join("key.pem");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let args = ["--tls-cert", "cert.pem", "--tls-key", "key.pem"];
    let server = world.serve_with(&[&["--listen", "127.0.0.1:0"], &args[..]].concat());
    assert!(!server.greeting.contains("TLS key"), "{}", server.greeting);
}

#[test]
fn a_certificate_without_its_key_is_refused() {
    let world = World::new();
    certificate(&world);
    let half = world.run(&["serve", "--tls-cert", "cert.pem"]);
    assert_eq!(half.code, 2, "{half:?}");
    let mut half = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    half.env("REPRISE_TLS_CERT", "cert.pem");
    let Err(half) = Server::start(&mut half) else {
        panic!("it serves with half a pair");
    };
    assert!(
        half.stderr.contains("both a certificate and a key"),
        "{half:?}"
    );
    std::fs::write(world.home.path().join("key.pem"), "no key").unwrap();
    let mut wrong = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    wrong.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem"]);
    let Err(wrong) = Server::start(&mut wrong) else {
        panic!("it serves without a key");
    };
    assert!(wrong.stderr.contains("`key.pem`"), "{wrong:?}");
}
