//! axe-core, the rules of accessibility. It is not in the repository: it is half a megabyte under another licence (MPL-2.0), and only
//! this suite uses it. npm fetches it once, into the cache of the control plane's binaries.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest as _, Sha256};

use crate::browser::Browser;

const VERSION: &str = "4.10.3";
/// The SHA-256 of its file.
const SHA256: &str = "880970c081707360e64f34cea25ff91892f5bc95675b0776925b9709dd8a68bb";

fn cache() -> PathBuf {
    let under =
        |name: &str, rest: &str| std::env::var_os(name).map(|folder| PathBuf::from(folder).join(rest));
    let cache = under("CONFREV_CACHE", "").or_else(|| under("XDG_CACHE_HOME", ""));
    cache
        .or_else(|| under("HOME", ".cache"))
        .expect("a home")
        .join("confrev")
        .join(format!("axe-core-{VERSION}"))
}

/// The text of the library.
fn library() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let (folder, file) = (cache(), cache().join("axe.min.js"));
        if !file.exists() {
            fetch(&folder);
        }
        let text = fs::read_to_string(&file).expect("the library can be read");
        let digest: Vec<_> =
            Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = digest.concat();
        assert_eq!(digest, SHA256, "{} is not axe-core {VERSION}: delete it", file.display());
        text
    })
}

fn fetch(folder: &PathBuf) {
    let new = folder.with_extension(format!("new-{}", std::process::id()));
    fs::create_dir_all(&new).expect("the cache can be written");
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(&new)
            .stdout(std::process::Stdio::null())
            .status();
        let status =
            status.unwrap_or_else(|error| panic!("{program}: {error}: install Debian's package `npm`"));
        assert!(status.success(), "{program} {arguments:?} failed");
    };
    run("npm", &["pack", "--silent", &format!("axe-core@{VERSION}")]);
    let archive = format!("axe-core-{VERSION}.tgz");
    run(
        "tar",
        &["--extract", "--file", &archive, "--strip-components=1", "package/axe.min.js", "package/LICENSE"],
    );
    // Another suite may have fetched it at the same time.
    let _ = fs::rename(&new, folder);
    let _ = fs::remove_dir_all(&new);
}

/// The rules that the present page violates, each with the elements.
pub(crate) fn violations(browser: &mut Browser) -> Vec<String> {
    if browser.eval("typeof axe") == "undefined" {
        browser.eval(&format!("{};0", library()));
    }
    let found = browser.eval(
        "axe.run(document, {resultTypes: ['violations'], preload: false}).then((result) => result.violations.map((one) =>
           one.id + ': ' + one.nodes.map((node) => node.html + ' ' + node.failureSummary).join(' | ')))",
    );
    found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().chars().take(1500).collect()).collect()
}
