//! The fields of each structure are where the specification has them.

extern crate ferrovia_nvme as nvme;

use std::mem::offset_of;

use nvme::Command;
use nvme::fabrics::{Connect, ConnectData, PropertyGet, PropertySet};
use nvme::identify::{Controller, LbaFormat, Namespace, PowerState};
use nvme::log::{DiscoveryEntry, DiscoveryHeader, ErrorEntry, RdmaAddress, Smart};
use nvme::private_data::{Accept, Reject, Request};

macro_rules! offsets {
    ($name:ident: $($field:ident $offset:literal),*) => {
        $(assert_eq!(offset_of!($name, $field), $offset, stringify!($name $field));)*
    };
}

#[test]
fn commands() {
    offsets!(Command:
        opcode 0, flags 1, cid 2, nsid 4, cdw2 8, cdw3 12, mptr 16, sgl 24, cdw10 40, cdw11 44,
        cdw12 48, cdw13 52, cdw14 56, cdw15 60
    );
    offsets!(Connect: cid 2, sgl 24, recfmt 40, qid 42, sqsize 44, cattr 46, kato 48);
    offsets!(ConnectData: hostid 0, cntlid 16, subnqn 256, hostnqn 512);
    offsets!(PropertyGet: cid 2, attrib 40, offset 44);
    offsets!(PropertySet: cid 2, attrib 40, offset 44, value 48);
    offsets!(Request: recfmt 0, qid 2, hrqsize 4, hsqsize 6, cntlid 8);
    offsets!(Accept: recfmt 0, crqsize 2);
    offsets!(Reject: recfmt 0, sts 2);
}

#[test]
fn identify_controller() {
    offsets!(Controller:
        vid 0, ssvid 2, sn 4, mn 24, fr 64, rab 72, ieee 73, cmic 76, mdts 77, cntlid 78, ver 80,
        rtd3r 84, rtd3e 88, oaes 92, ctratt 96, rrls 100, cntrltype 111, fguid 112, crdt 128,
        oacs 256, acl 258, aerl 259, frmw 260, lpa 261, elpe 262, npss 263, avscc 264, apsta 265,
        wctemp 266, cctemp 268, mtfa 270, hmpre 272, hmmin 276, tnvmcap 280, unvmcap 296, rpmbs 312,
        edstt 316, dsto 318, fwug 319, kas 320, hctma 322, mntmt 324, mxtmt 326, sanicap 328,
        hmminds 332, hmmaxd 336, nsetidmax 338, endgidmax 340, anatt 342, anacap 343, anagrpmax 344,
        nanagrpid 348, pels 352, sqes 512, cqes 513, maxcmd 514, nn 516, oncs 520, fuses 522,
        fna 524, vwc 525, awun 526, awupf 528, nvscc 530, nwpc 531, acwu 532, sgls 536, mnan 540,
        subnqn 768, ioccsz 1792, iorcsz 1796, icdoff 1800, fcatt 1802, msdbd 1803, ofcs 1804,
        psd 2048, vs 3072
    );
    offsets!(PowerState:
        mp 0, flags 3, enlat 4, exlat 8, relative 12, idlp 16, ips 18, actp 20, aps 22
    );
}

#[test]
fn identify_namespace() {
    offsets!(Namespace:
        nsze 0, ncap 8, nuse 16, nsfeat 24, nlbaf 25, flbas 26, mc 27, dpc 28, dps 29, nmic 30,
        rescap 31, fpi 32, dlfeat 33, nawun 34, nawupf 36, nacwu 38, nabsn 40, nabo 42, nabspf 44,
        noiob 46, nvmcap 48, npwg 64, npwa 66, npdg 68, npda 70, nows 72, anagrpid 92, nsattr 99,
        nvmsetid 100, endgid 102, nguid 104, eui64 120, lbaf 128, vs 384
    );
    offsets!(LbaFormat: ms 0, lbads 2, rp 3);
}

#[test]
fn log_pages() {
    offsets!(ErrorEntry:
        error_count 0, sqid 8, cid 10, status 12, parameter_error_location 14, lba 16, nsid 24,
        vendor_page 28, trtype 29, command_specific 32, trtype_specific 40
    );
    offsets!(Smart:
        critical_warning 0, composite_temperature 1, available_spare 3, available_spare_threshold 4,
        percentage_used 5, endurance_group_warning 6, data_units_read 32, data_units_written 48,
        host_read_commands 64, host_write_commands 80, controller_busy_time 96, power_cycles 112,
        power_on_hours 128, unsafe_shutdowns 144, media_errors 160, error_log_entries 176,
        warning_temperature_time 192, critical_temperature_time 196, temperature_sensors 200,
        thermal_transitions 216, thermal_time 224
    );
    offsets!(DiscoveryHeader: genctr 0, numrec 8, recfmt 16);
    offsets!(DiscoveryEntry:
        trtype 0, adrfam 1, subtype 2, treq 3, portid 4, cntlid 6, asqsz 8, eflags 10, trsvcid 32,
        subnqn 256, traddr 512, tsas 768
    );
    offsets!(RdmaAddress: qptype 0, prtype 1, cms 2, pkey 8);
}
