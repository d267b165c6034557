//! How one side tells the other where its memory is: the message of rdma-core's rping.

use privileged_api::{RdmaAddr, RmrContext, hton64, make_rdma_addr_absolute};

use crate::objects::Region;

/// What a side says of its memory: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advert {
    /// The RDMA address of the first byte.
    pub address: u64,
    /// The key of the region.
    pub key: u32,
    /// The length of the memory.
    pub size: u32,
}

impl Advert {
    /// Its bytes in a message.
    pub const LEN: usize = 16;

    /// Of a whole region that is open to peers.
    pub fn of(region: &Region) -> Advert {
        let address = make_rdma_addr_absolute(region.buffer.addr()).to_host();
        Advert { address, key: u32::from_be(region.context.0), size: region.buffer.len() as u32 }
    }

    /// The address, the key and the size, in network byte order.
    pub fn emit(self) -> [u8; Advert::LEN] {
        let mut bytes = [0; Advert::LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    pub fn parse(bytes: [u8; Advert::LEN]) -> Advert {
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| {
            let at = 4 * n;
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        });
        Advert { address: u64::from(a) << 32 | u64::from(b), key: c, size: d }
    }

    /// The memory in the form in which a request takes it.
    pub fn remote(self) -> (RdmaAddr, RmrContext) {
        (RdmaAddr(hton64(self.address)), RmrContext(self.key.to_be()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advert_is_in_network_byte_order() {
        let advert = Advert { address: 0x0102_0304_0506_0708, key: 0x090a_0b0c, size: 0x0d0e_0f10 };
        let bytes = core::array::from_fn(|n| n as u8 + 1);
        assert_eq!(advert.emit(), bytes);
        assert_eq!(Advert::parse(bytes), advert);
    }
}
