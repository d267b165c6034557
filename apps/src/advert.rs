//! How one side tells the other where its memory is: the message of rdma-core's rping. It holds the
//! address, the key and the size, in network byte order.

use rdma::{Region, RemoteMemory};

/// Bytes of the message.
pub(crate) const LEN: usize = 16;

/// What tells a peer of a whole region; zeroes if it is not open to peers.
pub(crate) fn of(region: &Region) -> [u8; LEN] {
    emit(region.remote().unwrap_or(RemoteMemory::new(0, 0, 0)))
}

pub(crate) fn emit(memory: RemoteMemory) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&memory.addr().to_be_bytes());
    bytes[8..12].copy_from_slice(&memory.key().to_be_bytes());
    bytes[12..].copy_from_slice(&(memory.len() as u32).to_be_bytes());
    bytes
}

/// The memory that a message which has arrived in a region tells of.
pub(crate) fn arrived(message: &Region) -> RemoteMemory {
    let mut bytes = [0; LEN];
    message.slice(..).read(&mut bytes);
    let [a, b, key, size] = [0, 1, 2, 3].map(|n| {
        let at = 4 * n;
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    });
    RemoteMemory::new(u64::from(a) << 32 | u64::from(b), size.into(), key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Net;

    #[test]
    fn an_advert_is_in_network_byte_order() {
        let memory = RemoteMemory::new(0x0102_0304_0506_0708, 0x0d0e_0f10, 0x090a_0b0c);
        let bytes: [u8; LEN] = core::array::from_fn(|n| n as u8 + 1);
        assert_eq!(emit(memory), bytes);
        let region = Net::new(1).nic(0).domain().and_then(|domain| domain.region(LEN)).expect("memory");
        region.slice(..).write(&bytes);
        assert_eq!(arrived(&region), memory);
    }
}
