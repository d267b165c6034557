//! Protection zones (pages it_pz_create, it_pz_query, it_pz_free).

use alloc::vec::Vec;

use privileged_api::*;

use crate::fixture::{CONFIG, OPEN, attributes};
use crate::{Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // A zone names its IA, each mask returns its fields, and a freed zone is invalid.
    test(
        "pz::create_query_free",
        &[
            "it_pz_create B01",
            "it_pz_query B01 B02 F01 F02 IT_ERR_INVALID_PZ",
            "it_pz_free B01 IT_ERR_INVALID_PZ",
        ],
        |f| {
            let pz = f.a.pz_create()?;
            check!(!pz.is_null());
            check_eq!((PzParamMask::ALL.bits(), PzParamMask::IA.bits()), (0x01, 0x02));
            check_eq!(f.a.pz_query(pz, PzParamMask::ALL)?.ia, f.a.handle());
            check_eq!(f.a.pz_query(pz, PzParamMask::IA)?.ia, f.a.handle());
            check_eq!(f.a.pz_query(pz, PzParamMask::empty())?, PzParam::default());
            check_eq!(f.a.object_counts().pz, 1);
            f.a.pz_free(pz)?;
            check_eq!(f.a.object_counts().pz, 0);
            refused(f.a.pz_query(pz, PzParamMask::ALL), Error::InvalidPz)?;
            refused(f.a.pz_free(pz), Error::InvalidPz)
        },
    ),
    // A mask with an undefined bit is refused.
    test("pz::undefined_mask_bits", &["it_pz_query IT_ERR_INVALID_MASK"], |f| {
        let pz = f.a.pz_create()?;
        for bits in [0x04, 0x80, 0x8000_0000, u32::MAX] {
            refused(f.a.pz_query(pz, PzParamMask::from_bits_retain(bits)), Error::InvalidMask)?;
        }
        check_eq!(f.a.pz_query(pz, PzParamMask::ALL)?.ia, f.a.handle());
        Ok(())
    }),
    // A zone with a region in it cannot be freed, and still works after the refusal.
    test("pz::busy_with_an_lmr", &["it_pz_free B02 IT_ERR_PZ_BUSY"], |f| {
        let pz = f.a.pz_create()?;
        let region = f.region(&f.a, pz, 64, OPEN)?;
        refused(f.a.pz_free(pz), Error::PzBusy)?;
        check_eq!(f.a.pz_query(pz, PzParamMask::ALL)?.ia, f.a.handle());
        let second = f.region(&f.a, pz, 64, OPEN)?;
        f.a.lmr_free(region.lmr)?;
        refused(f.a.pz_free(pz), Error::PzBusy)?;
        f.a.lmr_free(second.lmr)?;
        f.a.pz_free(pz)?;
        Ok(())
    }),
    // A zone with an endpoint in it cannot be freed.
    test("pz::busy_with_an_endpoint", &["it_pz_free B02 IT_ERR_PZ_BUSY"], |f| {
        let end = f.end(&f.a, &attributes())?;
        refused(f.a.pz_free(end.pz), Error::PzBusy)?;
        check_eq!(f.a.ep_query(end.ep, EpParamMask::PZ)?.pz, end.pz);
        f.a.ep_free(end.ep)?;
        f.a.pz_free(end.pz)?;
        Ok(())
    }),
    // Creating zones fails with IT_ERR_RESOURCES at some point, and works again after one is freed.
    test("pz::zones_run_out_and_come_back", &["it_pz_create IT_ERR_RESOURCES"], |f| {
        let mut zones = Vec::new();
        let refusal = loop {
            match f.a.pz_create() {
                Ok(pz) => zones.push(pz),
                Err(error) => break error,
            }
            check!(zones.len() <= CONFIG.max_pds as usize, "{} zones", zones.len());
        };
        check_eq!(refusal, Error::Resources);
        check!(zones.len() > 2, "only {} zones", zones.len());
        let middle = zones.swap_remove(zones.len() / 2);
        f.a.pz_free(middle)?;
        let fresh = f.a.pz_create()?;
        check!(fresh != middle, "a freed handle came back");
        refused(f.a.pz_free(middle), Error::InvalidPz)?;
        refused(f.a.pz_create(), Error::Resources)?;
        zones.push(fresh);
        for pz in zones {
            f.a.pz_free(pz)?;
        }
        check!(f.a.object_counts().is_empty());
        Ok(())
    }),
];
