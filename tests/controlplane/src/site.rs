//! The networks in which a control plane runs.

use std::net::Ipv4Addr;

use crate::node::network;

/// Where a control plane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// On loopback, with kwok in place of a kubelet.
    Loopback,
    /// In a network of its own, with kubelets that others start.
    Network,
}

impl Site {
    /// The address of the API server.
    pub(crate) fn address(self) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Network => network::ADDRESSES[0],
        }
    }
}
