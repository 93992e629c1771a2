//! TLS to the database, out of a container.

use super::names::{HOST, Site};

const AUTHORITY: &str = "/etc/retsu-collector/tls/ca.crt";
const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The option that mounts a file of the clients at `path`.
fn mount(site: &Site, name: &str, path: &str) -> String {
    format!("--volume={}:{path}:ro", site.database.file(&format!("{name}.pem")).display())
}

fn verify(site: &Site, host: &str) -> String {
    site.url(host, &format!("sslmode=verify-full&sslrootcert={AUTHORITY}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_certificate_of_the_given_authority_is_believed_and_no_other_is() {
    let site = Site::start(&[HOST, "other.test"]).await;
    let container = site.container(&verify(&site, HOST), &[&mount(&site, "authority", AUTHORITY)]);
    container.wait_until_leading().await;
    drop(container);

    for (host, authority, reason) in
        [(HOST, "stranger", "UnknownIssuer"), ("other.test", "authority", "certificate not valid for name")]
    {
        let (code, said) = site.run(&verify(&site, host), &[&mount(&site, authority, AUTHORITY)]);
        assert!(code == 1 && said.contains(reason), "{host} {authority}: {code} {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_authority_those_of_the_image_decide() {
    let site = Site::start(&[HOST]).await;
    let url = site.url(HOST, "sslmode=verify-full");
    let (code, said) = site.run(&url, &[]);
    assert!(code == 1 && said.contains("UnknownIssuer"), "{code} {said}");

    // Others in the place of the image's own, and in another place that the environment names.
    for options in [
        vec![mount(&site, "authority", SYSTEM)],
        vec![mount(&site, "authority", AUTHORITY), format!("--env=SSL_CERT_FILE={AUTHORITY}")],
    ] {
        let container = site.container(&url, &options.iter().map(String::as_str).collect::<Vec<_>>());
        container.wait_until_leading().await;
    }
}
