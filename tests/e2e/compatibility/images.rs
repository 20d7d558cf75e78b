//! Images under the names that other projects' tests ask for. No node ever pulls one.

use std::path::Path;
use std::sync::Once;

use confrev_controlplane::{ControlPlane, Image, Nodes};

/// A web server that ends at once when it is asked to, as nginx does.
const WEB_SERVER: &str = "trap 'exit 0' TERM QUIT; mkdir -p /www; echo ok > /www/index.html; \
    httpd -p 80 -h /www; httpd -p 8080 -h /www; while true; do sleep 3600 & wait $!; done";

/// Imports all images, once. `suites` is the folder with `agnhost`.
pub(crate) fn import(suites: &Path) {
    static IMPORTED: Once = Once::new();
    IMPORTED.call_once(|| {
        let nodes = Nodes::shared();
        let certificate = ControlPlane::shared().state_dir().join("ca.crt");
        let server = ["/bin/sh", "-c", WEB_SERVER];
        nodes.import_image(Image {
            names: &[
                "docker.io/library/nginx:1.19-alpine",
                "docker.io/argoproj/rollouts-demo:blue",
                "docker.io/argoproj/rollouts-demo:green",
                "docker.io/argoproj/rollouts-demo:red",
                "docker.io/argoproj/rollouts-demo:yellow",
                "registry.k8s.io/e2e-test-images/nginx:1.15-4",
                "registry.k8s.io/e2e-test-images/nginx:1.27-0",
            ],
            command: &server,
            ..Image::default()
        });
        nodes.import_image(Image {
            names: &["docker.io/library/alpine:3.8", "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"],
            command: &["/bin/sh"],
            ..Image::default()
        });
        let pause = ["/bin/sleep", "infinity"];
        nodes.import_image(Image {
            names: &["registry.k8s.io/pause:3.10.2"],
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
