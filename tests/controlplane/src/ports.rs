//! Free ports on loopback.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};

use crate::Result;

/// Below the ports that Linux gives to outgoing connections (`net.ipv4.ip_local_port_range`, by default from 32768). So
/// no connection takes a port before its server listens, or while the server restarts.
const RANGE: std::ops::Range<u16> = 16_384..32_768;

/// `N` different ports that are free at the moment, from a random place in the range. If another process takes one
/// before its server does, the supervisor starts again.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    let random = RandomState::new().hash_one(std::process::id());
    let from = usize::try_from(random % u64::from(RANGE.end - RANGE.start)).unwrap_or(0);
    let mut free = RANGE.cycle().skip(from).take(RANGE.len()).filter(|&port| is_free(port));
    let mut ports = [0; N];
    for port in &mut ports {
        *port = free.next().ok_or_else(|| format!("fewer than {N} ports of {RANGE:?} are free"))?;
    }
    Ok(ports)
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn free_ports_differ_and_no_connection_takes_them() {
        let ports = BTreeSet::from(free::<8>().unwrap());
        assert_eq!(ports.len(), 8);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ephemeral = listener.local_addr().unwrap().port();
        assert!(ports.iter().all(|&port| RANGE.contains(&port) && !RANGE.contains(&ephemeral)));
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
