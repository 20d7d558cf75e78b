//! Builds binaries of the control plane while a command builds something else.

use std::ffi::OsString;
use std::process::{Command, exit};
use std::thread;

use crate::Result;
use crate::binaries::Binaries;
use crate::process::die_with_parent;
use crate::supervisor::{exit_code, without_this_package};

/// Runs a command, and meanwhile makes the binaries of a control plane. Returns the command's exit code when both have
/// ended. If the command fails, the program ends at once.
pub fn build(program: &OsString, arguments: &[OsString]) -> Result<u8> {
    let mut command = Command::new(program);
    command.args(arguments);
    without_this_package(&mut command);
    let problem = format!("cannot run {}", program.display());
    let mut child = die_with_parent(&mut command).spawn().map_err(|e| format!("{problem}: {e}"))?;
    let text = format!("`{} {}`", program.display(), arguments.join(" ".as_ref()).display());
    let waiting = thread::spawn(move || {
        let code = exit_code(&child.wait())?;
        eprintln!("controlplane: {text} has ended with {code}");
        if code != 0 {
            exit(code.into());
        }
        Ok(code)
    });
    Binaries::control_plane()?;
    waiting.join().unwrap_or(Err(problem))
}
