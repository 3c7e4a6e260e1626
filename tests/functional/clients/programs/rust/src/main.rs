//! One request with ureq and rustls, verified by the platform's roots: `client METHOD URL`.
//! Prints the status and the body, or the error.

use ureq::tls::{RootCerts, TlsConfig};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (method, url) = (arguments.next().expect("a method"), arguments.next().expect("a URL"));
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .build()
        .into();
    let request = ureq::http::Request::builder().method(method.as_str()).uri(url).body(()).expect("a request");
    match agent.run(request) {
        Ok(mut response) => {
            let body = response.body_mut().read_to_string().unwrap_or_else(|error| error.to_string());
            print!("{}\n{}", response.status().as_u16(), body);
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
