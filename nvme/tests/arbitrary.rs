//! Reading arbitrary bytes never panics, and what is accepted is the same after it was written and
//! read again.

extern crate ferrovia_nvme as nvme;

use nvme::async_event::Event;
use nvme::fabrics::{Connect, PropertyGet, PropertySet};
use nvme::feature::{GetFeatures, NumberOfQueues, SetFeatures};
use nvme::identify::{DescriptorWriter, Descriptors, Identify, Namespace};
use nvme::log::{DiscoveryEntry, GetLogPage};
use nvme::private_data::{Accept, Reject, Request};
use nvme::sgl::{Descriptor, Sgl};
use nvme::{Command, Completion, Nqn};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

/// A field whose text is often a name.
fn field() -> impl Strategy<Value = [u8; 256]> {
    let text = prop_oneof![
        Just(Vec::new()),
        Just(b"nqn.2014-08.org.nvmexpress.discovery\0".to_vec()),
        Just(b"nqn.2014-08.".to_vec()),
    ];
    (text, prop::collection::vec(any::<u8>(), 256)).prop_map(|(text, mut bytes)| {
        bytes[..text.len()].copy_from_slice(&text);
        bytes.try_into().unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 20 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn commands(bytes in prop::array::uniform32(any::<u16>())) {
        let command = Command::read_from_bytes(bytes.as_bytes()).unwrap();
        let _ = (command.fuse(), command.psdt(), command.direction(), command.fctype());
        prop_assert!((1..=0x1_0000).contains(&command.nlb()));
        prop_assert!((1..=256).contains(&command.dsm_ranges()));
        let _ = (command.slba(), command.fua(), command.deallocate(), command.prinfo());
        let _ = (command.dsm_attributes(), command.aborts());
        let _ = (PropertyGet::of(&command).size(), PropertySet::of(&command).size());
        let _ = Connect::of(&command).attributes();
        prop_assert_eq!(Connect::of(&command).command(), command);
        let identify = Identify::of(&command);
        prop_assert_eq!(Identify::of(&identify.command()), identify);
        let log = GetLogPage::of(&command);
        prop_assert_eq!(GetLogPage::of(&log.command()), log);
        let set = SetFeatures::of(&command);
        prop_assert_eq!(SetFeatures::of(&set.command()), set);
        if let Ok(get) = GetFeatures::of(&command) {
            prop_assert_eq!(GetFeatures::of(&get.command()), Ok(get));
        }
        let completion = Completion::read_from_prefix(bytes.as_bytes()).unwrap().0;
        let _ = format!("{:?} {}", completion, completion.status());
    }

    #[test]
    fn words(word in any::<u32>()) {
        if let Ok(queues) = NumberOfQueues::parse(word) {
            prop_assert_eq!(queues.value(), word);
        }
        let event = Event::parse(word);
        prop_assert_eq!(Event::parse(event.result()), event);
    }

    #[test]
    fn descriptors_of_data(bytes in any::<[u8; 16]>(), identifier in prop_oneof![
        Just(0x01_u8), Just(0x40), Just(0x4f), any::<u8>(),
    ]) {
        let mut bytes = bytes;
        bytes[15] = identifier;
        match Descriptor(bytes).parse() {
            Ok(Sgl::Keyed { addr, len, key, invalidate }) => {
                prop_assert_eq!(Descriptor::keyed(addr, len, key, invalidate), Descriptor(bytes));
            }
            Ok(Sgl::Offset { offset, len }) => {
                // Its reserved bytes are ignored.
                bytes[12..15].fill(0);
                prop_assert_eq!(Descriptor::offset(offset, len), Descriptor(bytes));
            }
            Err(status) => prop_assert_eq!(status.0, 0x11),
        }
    }

    #[test]
    fn private_data(bytes in prop::collection::vec(any::<u8>(), 0..60), valid in any::<bool>()) {
        let mut bytes = bytes;
        if valid {
            let end = bytes.len().min(2);
            bytes[..end].fill(0);
        }
        if let Ok(request) = Request::parse(&bytes) {
            prop_assert_eq!(request.as_bytes(), &bytes[..32]);
        }
        if let Ok(accept) = Accept::parse(&bytes) {
            prop_assert_eq!(accept.as_bytes(), &bytes[..32]);
        }
        if let Some(code) = Reject::parse(&bytes) {
            let reject = Reject::new(code);
            prop_assert_eq!(reject.as_bytes(), &bytes[..4]);
        }
    }

    #[test]
    fn names(field in field()) {
        if let Ok(nqn) = Nqn::read(&field) {
            let mut written = [0xff; 256];
            nqn.write(&mut written);
            prop_assert_eq!(Nqn::read(&written), Ok(nqn));
            prop_assert!(!nqn.to_string().contains(char::is_control));
        }
    }

    #[test]
    fn lists_of_identifiers(
        ids in prop::collection::vec((0_u8..6, 0_u8..20, any::<[u8; 16]>()), 0..8),
        cut in 0_usize..100,
    ) {
        let mut bytes = Vec::new();
        for (nidt, nidl, nid) in ids {
            bytes.extend([nidt, nidl, 0, 0]);
            bytes.extend(&nid[..usize::from(nidl.min(16))]);
        }
        bytes.truncate(cut);
        let ids: Vec<_> = Descriptors::new(&bytes).collect();
        let mut written = [0; 256];
        let mut writer = DescriptorWriter::new(&mut written);
        for id in &ids {
            prop_assert_eq!(writer.push(*id), Ok(()));
        }
        prop_assert!(Descriptors::new(&written).eq(ids));
    }

    #[test]
    fn pages(bytes in prop::collection::vec(any::<u8>(), 4096)) {
        let _ = Namespace::ref_from_bytes(&bytes).unwrap().block_size();
        let entry = DiscoveryEntry::ref_from_prefix(&bytes).unwrap().0;
        let _ = (entry.address(), entry.service(), Nqn::read(&entry.subnqn));
    }
}
