//! Service ids, which connection requests and service resolutions ask for (IBTA vol. 1 section
//! 12.7.3, annex A3.2.3.3, annex A11.2).

use core::fmt;

/// A 64-bit service id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

/// The IP CM service's ids: 0x0000_0000_01PP_port, where PP is the IP protocol (annex A11.2.1).
const IP_CM_PREFIX: u64 = 0x0000_0000_0100_0000;
/// IT-API's ids for IANA ports (IT-API 2.1 appendix A, it_conn_qual_t).
const IT_API_PREFIX: u64 = 0x1000_0ce1_0000_0000;

impl ServiceId {
    /// IP protocol number of TCP: the port space that rdma_cm calls `RDMA_PS_TCP`.
    pub const TCP: u8 = 6;
    /// IP protocol number of UDP: the port space that rdma_cm calls `RDMA_PS_UDP`.
    pub const UDP: u8 = 17;

    /// The IP CM service's id of a port; the private data then begins with a [`crate::cm::ip_cm`]
    /// header.
    pub const fn ip_cm(protocol: u8, port: u16) -> ServiceId {
        ServiceId(IP_CM_PREFIX | (protocol as u64) << 16 | port as u64)
    }

    /// The IP protocol and port, if it is an id of the IP CM service.
    pub const fn to_ip_cm(self) -> Option<(u8, u16)> {
        if self.0 & !0xff_ffff == IP_CM_PREFIX { Some(((self.0 >> 16) as u8, self.0 as u16)) } else { None }
    }

    /// IT-API's id of an IANA port.
    pub const fn it_api(port: u16) -> ServiceId {
        ServiceId(IT_API_PREFIX | port as u64)
    }

    /// The IANA port, if it is IT-API's id of one.
    pub const fn to_it_api(self) -> Option<u16> {
        if self.0 & !0xffff == IT_API_PREFIX { Some(self.0 as u16) } else { None }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_map_both_ways() {
        assert_eq!(ServiceId::ip_cm(ServiceId::TCP, 4420).0, 0x0106_1144);
        assert_eq!(ServiceId(0x0111_1c06).to_ip_cm(), Some((ServiceId::UDP, 7174)));
        assert_eq!(ServiceId::it_api(7).to_ip_cm(), None);
        assert_eq!(ServiceId::it_api(4420).0, 0x1000_0ce1_0000_1144);
        assert_eq!(ServiceId(0x1000_0ce1_0000_ffff).to_it_api(), Some(0xffff));
        assert_eq!(ServiceId(0x1000_0ce1_0001_0000).to_it_api(), None);
        assert_eq!(ServiceId::ip_cm(6, 1).to_it_api(), None);
    }
}
