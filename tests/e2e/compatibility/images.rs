//! Images under the names that other projects' tests ask for. No node ever pulls one.

use std::fs;
use std::path::Path;
use std::sync::Once;

use confrev_controlplane::{ControlPlane, Image, Nodes};

/// A web server that ends at once when it is asked to, as nginx does.
const WEB_SERVER: &str = "trap 'exit 0' TERM QUIT; mkdir -p /www; echo ok > /www/index.html; \
    httpd -p 80 -h /www; httpd -p 8080 -h /www; while true; do sleep 3600 & wait $!; done";

/// kustomize's first example runs this program, which answers on a port of its own.
const HELLO: &str = "#!/bin/sh\nexec httpd -f -p 8080 -h /tmp\n";

/// Imports all images, once. `suites` is the folder with `agnhost`.
pub(crate) fn import(suites: &Path) {
    static IMPORTED: Once = Once::new();
    IMPORTED.call_once(|| {
        let nodes = Nodes::shared();
        let certificate = ControlPlane::shared().state_dir().join("ca.crt");
        let server = ["/bin/sh", "-c", WEB_SERVER];
        let hello = ControlPlane::shared().state_dir().join("hello");
        fs::write(&hello, HELLO).expect("a script can be written");
        nodes.import_image(Image {
            names: &[
                "docker.io/library/nginx:1.19-alpine",
                "docker.io/library/nginx:1.16.0",
                "docker.io/library/nginx:1.7.9",
                "docker.io/library/wordpress:4.8-apache",
                "docker.io/monopole/hello:1",
                "docker.io/argoproj/rollouts-demo:blue",
                "docker.io/argoproj/rollouts-demo:green",
                "docker.io/argoproj/rollouts-demo:red",
                "docker.io/argoproj/rollouts-demo:yellow",
                "registry.k8s.io/e2e-test-images/nginx:1.15-4",
                "registry.k8s.io/e2e-test-images/nginx:1.27-0",
            ],
            command: &server,
            programs: &[("hello", &hello)],
            ..Image::default()
        });
        nodes.import_image(Image {
            names: &[
                "docker.io/library/alpine:3.8",
                "docker.io/library/busybox:local",
                "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
            ],
            command: &["/bin/sh"],
            ..Image::default()
        });
        // Its pods set arguments only.
        nodes.import_image(Image {
            names: &["docker.io/osixia/openldap:1.1.11"],
            entrypoint: &["/bin/sh", "-c", "trap exit TERM; while true; do sleep 3600 & wait $!; done"],
            ..Image::default()
        });
        let pause = ["/bin/sleep", "infinity"];
        nodes.import_image(Image {
            names: &["registry.k8s.io/pause:3.10.2", "docker.io/library/mysql:5.6"],
            command: &pause,
            ..Image::default()
        });
        nodes.import_image(Image {
            names: &[
                "registry.k8s.io/e2e-test-images/agnhost:2.63.0",
                "registry.k8s.io/e2e-test-images/agnhost:2.55",
            ],
            entrypoint: &["/agnhost"],
            command: &["pause"],
            // The web server of StatefulSets serves this file, which the tests move away and back. Its content does not matter.
            programs: &[("agnhost", &suites.join("agnhost")), ("localhost.crt", &certificate)],
        });
    });
}
