//! What a state disk holds: registrations and reservations that persist, by namespace.
//!
//! There are two slots. Each change writes the one with the older state, whole, so a loss of power
//! within a write leaves the other one. A slot begins with a header:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `FVRESV01` |
//! | 8 | 8 | generation: one more than that of the other slot |
//! | 16 | 4 | bytes of the records |
//! | 20 | 4 | CRC-32 of the header, in which this field is zero, and the records |
//!
//! Each record has the namespace's UUID (16), the generation (4), the reservation's type or 0 (1),
//! the number of registrants (1), two zero bytes, the holder (16), and for each registrant its host
//! identifier (16) and key (8). Numbers are little-endian.

use alloc::vec::Vec;

use nvme::reservation::Type;

use super::engine::{Held, Registrant, Reservation};

/// Bytes of a slot.
pub(crate) const SLOT: usize = 256 << 10;
/// The most records: of the namespaces that are exported, and as many others.
pub(crate) const MOST_RECORDS: usize = 2 * crate::target::MOST_NAMESPACES;
const MAGIC: &[u8; 8] = b"FVRESV01";
const HEADER: usize = 24;
const RECORD: usize = 40;
const REGISTRANT: usize = 24;

const _: () = assert!(
    HEADER + MOST_RECORDS * (RECORD + super::engine::MOST_REGISTRANTS * REGISTRANT) <= SLOT,
    "all records fit a slot"
);

/// What persists of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) uuid: [u8; 16],
    pub(crate) reservation: Reservation,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Nothing was written to it, or nothing that matters.
    Empty,
    /// A write was not completed.
    Torn,
    /// Something that no target has written.
    Foreign,
    /// A state, with its generation.
    Whole(u64, Vec<Record>),
}

/// Why a state disk cannot be used.
pub(crate) const FOREIGN: &str = "the state disk holds something else; it has to be zero at first";
pub(crate) const DAMAGED: &str = "both states on the state disk are damaged";

fn crc(header: &[u8; HEADER], records: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(records);
    crc.finalize()
}

/// Writes a state into a slot's bytes, of which it needs so many.
pub(crate) fn write<'a>(
    generation: u64,
    records: impl Iterator<Item = (&'a [u8; 16], &'a Reservation)>,
    into: &mut Vec<u8>,
) {
    into.clear();
    into.resize(HEADER, 0);
    for (uuid, reservation) in records {
        into.extend_from_slice(uuid);
        into.extend_from_slice(&reservation.generation.to_le_bytes());
        let (kind, holder) = reservation.held.map_or((0, [0; 16]), |held| (held.kind as u8, held.holder));
        into.extend_from_slice(&[kind, reservation.registrants.len() as u8, 0, 0]);
        into.extend_from_slice(&holder);
        for registrant in &reservation.registrants {
            into.extend_from_slice(&registrant.host);
            into.extend_from_slice(&registrant.key.to_le_bytes());
        }
    }
    let (header, records) = into.split_at_mut(HEADER);
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&generation.to_le_bytes());
    header[16..20].copy_from_slice(&(records.len() as u32).to_le_bytes());
    let crc = header.first_chunk().map_or(0, |header| crc(header, records));
    header[20..].copy_from_slice(&crc.to_le_bytes());
}

/// Takes bytes from the front.
fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(first)
}

fn record(bytes: &mut &[u8]) -> Option<Record> {
    let uuid = *take::<16>(bytes)?;
    let generation = u32::from_le_bytes(*take(bytes)?);
    let &[kind, count, 0, 0] = take::<4>(bytes)? else { return None };
    let holder = *take::<16>(bytes)?;
    let held = match kind {
        0 => None,
        kind => Some(Held { kind: Type::from_number(kind)?, holder }),
    };
    let mut reservation = Reservation { generation, persists: true, held, ..Reservation::default() };
    for _ in 0..count {
        let (host, key) = (*take(bytes)?, u64::from_le_bytes(*take(bytes)?));
        if reservation.has(host) {
            return None;
        }
        reservation.registrants.push(Registrant { host, key }).ok()?;
    }
    // The holder of most types is a registrant, and there is none without registrants.
    let is_held = held.is_none_or(|held| match held.kind.is_of_all() {
        true => !reservation.registrants.is_empty(),
        false => reservation.has(held.holder),
    });
    is_held.then_some(Record { uuid, reservation })
}

/// What a slot's bytes hold.
pub(crate) fn read(bytes: &[u8]) -> Slot {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Slot::Foreign };
    if header[..8] != *MAGIC {
        return if header.iter().all(|&byte| byte == 0) { Slot::Empty } else { Slot::Foreign };
    }
    let whole = || {
        let mut fields = &header[8..];
        let generation = u64::from_le_bytes(*take(&mut fields)?);
        // No target has written the last one: there is none behind it.
        generation.checked_add(1)?;
        let len = u32::from_le_bytes(*take(&mut fields)?);
        let written = u32::from_le_bytes(*take(&mut fields)?);
        let mut records = rest.get(..usize::try_from(len).ok()?)?;
        let mut header = *header;
        header[20..].fill(0);
        if crc(&header, records) != written {
            return None;
        }
        let mut all: Vec<Record> = Vec::new();
        while !records.is_empty() {
            let record = record(&mut records)?;
            if all.len() == MOST_RECORDS || all.iter().any(|other| other.uuid == record.uuid) {
                return None;
            }
            all.push(record);
        }
        Some((generation, all))
    };
    whole().map_or(Slot::Torn, |(generation, records)| Slot::Whole(generation, records))
}

/// The newest state of two slots, and the slot that the next state goes to.
pub(crate) fn choose(slots: [Slot; 2]) -> Result<(u64, Vec<Record>, usize), &'static str> {
    match slots {
        [Slot::Foreign, _] | [_, Slot::Foreign] => Err(FOREIGN),
        // Only one slot is written at a time.
        [Slot::Torn, Slot::Torn] => Err(DAMAGED),
        [Slot::Whole(one, records), Slot::Whole(other, _)] if one > other => Ok((one, records, 1)),
        [_, Slot::Whole(generation, records)] => Ok((generation, records, 0)),
        [Slot::Whole(generation, records), _] => Ok((generation, records, 1)),
        // The first write of all was torn, so nobody was told that anything persists.
        [Slot::Torn, Slot::Empty] => Ok((0, Vec::new(), 0)),
        [Slot::Empty, Slot::Torn] => Ok((0, Vec::new(), 1)),
        [Slot::Empty, Slot::Empty] => Ok((0, Vec::new(), 0)),
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn reserved(kind: Type) -> Reservation {
        let mut reservation = Reservation { generation: 9, persists: true, ..Reservation::default() };
        for n in 1..=3 {
            let registrant = Registrant { host: [n; 16], key: 0x100 + u64::from(n) };
            reservation.registrants.push(registrant).expect("room");
        }
        reservation.held = Some(Held { kind, holder: [2; 16] });
        reservation
    }

    fn records() -> Vec<Record> {
        let record = |n: u8, kind| Record { uuid: [n; 16], reservation: reserved(kind) };
        vec![record(1, Type::WriteExclusive), record(2, Type::ExclusiveAccessAll)]
    }

    /// A slot with these records.
    fn slot(generation: u64, records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(generation, records.iter().map(|record| (&record.uuid, &record.reservation)), &mut bytes);
        bytes.resize(SLOT, 0);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&slot(7, &records())), Slot::Whole(7, records()));
        assert_eq!(read(&slot(8, &[])), Slot::Whole(8, Vec::new()));
        assert_eq!(read(&vec![0; SLOT]), Slot::Empty);
        let all =
            (0..MOST_RECORDS).map(|n| Record { uuid: [n as u8; 16], reservation: reserved(Type::ALL[0]) });
        let all: Vec<_> = all.collect();
        assert_eq!(read(&slot(1, &all)), Slot::Whole(1, all));
    }

    #[test]
    fn a_slot_that_is_torn_anywhere_is_not_used() {
        let (old, new) = (slot(7, &records()[..1]), slot(9, &records()));
        // A write in blocks of 8 bytes, of which each may be there or not.
        let len = HEADER + 2 * (RECORD + 3 * REGISTRANT);
        let mut count = 0;
        for cut in (8..len).step_by(8) {
            for (one, other) in [(&old, &new), (&new, &old)] {
                let mut torn = one.clone();
                torn[cut..].copy_from_slice(&other[cut..]);
                // Where the two are alike, a cut makes no difference. It never makes a third state.
                assert!([Slot::Torn, read(&old), read(&new)].contains(&read(&torn)), "cut at {cut}");
                count += usize::from(read(&torn) == Slot::Torn);
            }
        }
        assert!(count > 20, "{count} are torn");
        for at in 8..len {
            let mut damaged = new.clone();
            damaged[at] ^= 0x10;
            assert_eq!(read(&damaged), Slot::Torn, "byte {at}");
        }
    }

    #[test]
    fn records_that_no_target_writes_are_damage() {
        let one = &records()[..1];
        for damage in [
            // A type that does not exist, a holder that is not registered, a host that is so twice.
            |record: &mut Record| {
                record.reservation.held = Some(Held { kind: Type::ALL[0], holder: [9; 16] })
            },
            |record: &mut Record| record.reservation.registrants[1].host = [1; 16],
            |record: &mut Record| {
                record.reservation.registrants.clear();
                record.reservation.held = Some(Held { kind: Type::ALL[5], holder: [1; 16] });
            },
        ] {
            let mut records = one.to_vec();
            damage(&mut records[0]);
            assert_eq!(read(&slot(1, &records)), Slot::Torn);
        }
        let twice = [one[0].clone(), one[0].clone()];
        assert_eq!(read(&slot(1, &twice)), Slot::Torn);
        assert_eq!(read(&slot(u64::MAX, one)), Slot::Torn);
        assert_eq!(read(&[0; 7]), Slot::Foreign);
    }

    #[test]
    fn the_newest_whole_slot_counts_and_the_other_one_is_written_next() {
        let whole = |generation| Slot::Whole(generation, Vec::new());
        let chosen = |one, other| choose([one, other]).map(|(generation, _, next)| (generation, next));
        use Slot::{Empty, Foreign, Torn};
        assert_eq!(chosen(whole(4), whole(5)), Ok((5, 0)));
        assert_eq!(chosen(whole(6), whole(5)), Ok((6, 1)));
        assert_eq!(chosen(whole(6), Torn), Ok((6, 1)));
        assert_eq!(chosen(Torn, whole(5)), Ok((5, 0)));
        assert_eq!(chosen(whole(1), Empty), Ok((1, 1)));
        assert_eq!(chosen(Empty, Empty), Ok((0, 0)));
        assert_eq!(chosen(Torn, Empty), Ok((0, 0)));
        assert_eq!(chosen(Torn, Torn), Err(DAMAGED));
        assert_eq!(chosen(Foreign, whole(5)), Err(FOREIGN));
        assert_eq!(chosen(Empty, Foreign), Err(FOREIGN));
    }
}
