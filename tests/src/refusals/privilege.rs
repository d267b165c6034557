//! Privilege as a capability (chapter 4.10): the calls that an IA without the token is refused, and
//! those that it is not.

use alloc::boxed::Box;

use privileged_api::*;

use crate::fixture::{OPEN, PAGE, SIGNALLED, attributes, sevd};
use crate::{Test, check, check_eq, refused, test};

pub(crate) const TESTS: &[Test] = &[
    // Each privileged operation is refused to an IA without the token.
    test("privilege::refused_without_it", &["4.10 B01-B03"], |f| {
        let ia = f.unprivileged()?;
        let pz = ia.pz_create()?;
        let buffer = f.buffer(PAGE)?;
        let io_addr = crate::memory::iobl::map(&f.a, &buffer)?;
        let pages = [io_addr];
        let list = Iobl::pages(&pages, PAGE as u64, 0);
        let evd = sevd(&ia, EventType::DTO_EVENT_STREAM, 64, 1)?;
        let conn = sevd(&ia, EventType::CM_MSG_EVENT_STREAM, 8, 1)?;
        let before = ia.object_counts();
        refused(ia.mem_map(buffer.addr(), 0, PAGE), Error::NoPermission)?;
        refused(ia.mem_unmap(io_addr, PAGE), Error::NoPermission)?;
        refused(ia.lmr_create_unlinked(pz, 1, LmrFlags::NONE, 0), Error::NoPermission)?;
        let memory = LmrMemory::Iobl { addr: 0, iobl: &list };
        let region = ia.lmr_create(pz, memory, 64, AddrMode::Relative, OPEN, LmrFlags::NONE, 0);
        refused(region, Error::NoPermission)?;
        refused(ia.evd_callback_attach(evd, Box::new(|_, _| {})), Error::NoPermission)?;
        refused(ia.evd_callback_detach(evd), Error::NoPermission)?;
        let ep = ia.ep_rc_create(pz, evd, evd, conn, EpFlags::empty(), &attributes());
        refused(ep, Error::NoPermission)?;
        check_eq!(ia.object_counts(), before);
        Ok(())
    }),
    // An IA without the token can connect and transfer data.
    test("privilege::all_else_works_without_it", &["4.10 B04 O01"], |f| {
        let ia = f.unprivileged()?;
        let plain = EpAttributes { priv_ops_enable: false, ..attributes() };
        let (a, b) = (f.end(&ia, &plain)?, f.end(&f.b, &attributes())?);
        f.connect(&a, &b)?;
        let (own, peer) = (f.region(&ia, a.pz, 64, OPEN)?, f.region(&f.b, b.pz, 64, OPEN)?);
        own.fill(1);
        f.b.post_recv(b.ep, &[peer.whole()], 1, DtoFlags::COMPLETION)?;
        ia.post_send(a.ep, &[own.whole()], 2, SIGNALLED)?;
        b.recv_done(1, DtoStatus::Success)?;
        a.done(2, DtoStatus::Success)?;
        check!(peer.all() == own.all());
        peer.fill(2);
        ia.post_rdma_read(a.ep, &[own.whole()], 3, SIGNALLED, peer.remote(0), peer.context()?)?;
        a.done(3, DtoStatus::Success)?;
        check!(peer.all() == own.all());
        Ok(())
    }),
    // A token belongs to the IA that was created with it.
    test("privilege::is_the_ias_own", &["4.10 O01", "it_evd_callback_attach B05"], |f| {
        // Two IAs on one interface: the token of one does not help the other, and neither can use
        // the other's objects.
        let (with, without) = (f.another(Some(f.setup.privileged))?, f.unprivileged()?);
        let buffer = f.buffer(PAGE)?;
        let (io_addr, len) = with.mem_map(buffer.addr(), 0, PAGE)?;
        refused(without.mem_unmap(io_addr, len), Error::NoPermission)?;
        with.mem_unmap(io_addr, len)?;
        let pz = with.pz_create()?;
        refused(without.pz_query(pz, PzParamMask::ALL), Error::InvalidPz)?;
        refused(without.pz_free(pz), Error::InvalidPz)?;
        check_eq!(with.object_counts().pz, 1);
        Ok(())
    }),
];
