//! Free ports on loopback.

use std::net::{Ipv4Addr, TcpListener};

use crate::Result;

/// As many different ports as asked for, free at the moment. Another process may take one before its server does; the
/// supervisor then starts over.
pub(crate) fn free<const N: usize>() -> Result<[u16; N]> {
    // All are held until all are known, else the system may give one of them twice.
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let problem = |e| format!("cannot find a free port: {e}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(problem)?;
        *port = listener.local_addr().map_err(problem)?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn free_ports_differ_and_can_be_bound() {
        let ports = free::<8>().unwrap();
        assert_eq!(BTreeSet::from(ports).len(), 8);
        let listeners: Vec<_> = ports.iter().map(|p| TcpListener::bind((Ipv4Addr::LOCALHOST, *p))).collect();
        assert!(listeners.iter().all(std::result::Result::is_ok));
    }
}
