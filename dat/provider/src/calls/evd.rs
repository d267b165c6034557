//! Event dispatchers and consumer notification objects.
#![expect(unsafe_code, reason = "events and results go to C by pointers; agents are functions of C")]

use dat::{CnoHandle, Error, ErrorType, EvdFlags, EvdHandle, EventNumber, Result, Subtype};

use crate::abi::{self, Agent, CnoParam, Count, EvdParam, Handle, Return};
use crate::call::{as_count, call, count, put, put_if, required};
use crate::cells;
use crate::opened;

const INVALID: Subtype = Subtype::InvalidHandle1;
const INVALID_CNO: Subtype = Subtype::InvalidHandleCno;

/// An agent of C, whose data is a number for Rust: another thread passes it to the function.
struct Proxy {
    data: usize,
    function: abi::AgentFunction,
}

/// The agent that C gives; without a function it is none.
fn agent(of: Agent) -> Option<dat::Agent> {
    let proxy = Proxy { data: of.instance_data.expose_provenance(), function: of.function? };
    Some(Box::new(move |ia: &dat::Ia, evd: EvdHandle| {
        let Proxy { data, function } = proxy;
        let Ok(Some(cell)) = ia.get_consumer_context(evd) else { return };
        let (data, evd) = (
            std::ptr::with_exposed_provenance_mut(data),
            std::ptr::with_exposed_provenance_mut(cell as usize),
        );
        // SAFETY: the program gave the function for these arguments.
        unsafe { function(data, evd) }
    }))
}

/// `dat_cno_create`.
pub(crate) unsafe extern "C" fn cno_create(ia: Handle, proxy: Agent, cno: *mut Handle) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(cno, Subtype::InvalidArg3)?;
        let made = opened.ia.cno_create(agent(proxy))?;
        let named = opened.new_name(made, |ia| ia.cno_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(cno, named, Subtype::InvalidArg3) }
    })
}

/// `dat_cno_modify_agent`.
pub(crate) extern "C" fn cno_modify_agent(cno: Handle, proxy: Agent) -> Return {
    call(|| {
        let (opened, word) = opened::of(cno, INVALID_CNO)?;
        opened.ia.cno_modify_agent(CnoHandle::from_raw(word), agent(proxy))
    })
}

/// `dat_cno_query`. The agent itself is not returned.
pub(crate) unsafe extern "C" fn cno_query(cno: Handle, _mask: u32, param: *mut CnoParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(cno, INVALID_CNO)?;
        let of = opened.ia.cno_query(CnoHandle::from_raw(word))?;
        let proxy = Agent { instance_data: std::ptr::null_mut(), function: None };
        let ia_handle = opened.known(of.ia_handle);
        let found = CnoParam { ia_handle, proxy_type: of.proxy_type.as_raw(), proxy };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_cno_free`.
pub(crate) extern "C" fn cno_free(cno: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(cno, INVALID_CNO)?;
        opened.ia.cno_free(CnoHandle::from_raw(word))?;
        opened.unname(cno);
        Ok(())
    })
}

/// `dat_cno_wait`.
pub(crate) unsafe extern "C" fn cno_wait(cno: Handle, timeout: u32, evd: *mut Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(cno, INVALID_CNO)?;
        opened.engine.leave();
        let triggered = opened.ia.cno_wait(CnoHandle::from_raw(word), timeout)?;
        // SAFETY: see the module `calls`.
        unsafe { put_if(evd, opened.known(triggered)) };
        Ok(())
    })
}

/// `dat_evd_create`.
pub(crate) unsafe extern "C" fn create(
    ia: Handle,
    qlen: Count,
    cno: Handle,
    flags: u32,
    evd: *mut Handle,
) -> Return {
    call(|| {
        let opened = opened::ia(ia)?;
        required(evd, Subtype::InvalidArg5)?;
        let cno = CnoHandle::from_raw(cells::word(cno));
        let flags = EvdFlags::from_bits_retain(flags);
        let made = opened.ia.evd_create(count(qlen, Subtype::InvalidArg2)?, cno, flags)?;
        let named = opened.new_name(made, |ia| ia.evd_free(made))?;
        // SAFETY: see the module `calls`.
        unsafe { put(evd, named, Subtype::InvalidArg5) }
    })
}

/// `dat_evd_query`.
pub(crate) unsafe extern "C" fn query(evd: Handle, _mask: u32, param: *mut EvdParam) -> Return {
    call(|| {
        let (opened, word) = opened::of(evd, INVALID)?;
        let of = opened.ia.evd_query(EvdHandle::from_raw(word))?;
        let found = EvdParam {
            ia_handle: opened.known(of.ia_handle),
            evd_qlen: as_count(of.evd_qlen),
            evd_state: of.evd_state.bits(),
            cno_handle: opened.known(of.cno_handle),
            evd_flags: of.evd_flags.bits(),
        };
        // SAFETY: see the module `calls`.
        unsafe { put(param, found, Subtype::InvalidArg3) }
    })
}

/// `dat_evd_modify_cno`.
pub(crate) extern "C" fn modify_cno(evd: Handle, cno: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(evd, INVALID)?;
        opened.ia.evd_modify_cno(EvdHandle::from_raw(word), CnoHandle::from_raw(cells::word(cno)))
    })
}

/// `dat_evd_resize`.
pub(crate) extern "C" fn resize(evd: Handle, qlen: Count) -> Return {
    call(|| {
        let (opened, word) = opened::of(evd, INVALID)?;
        opened.ia.evd_resize(EvdHandle::from_raw(word), count(qlen, Subtype::InvalidArg2)?)
    })
}

/// `dat_evd_free`.
pub(crate) extern "C" fn free(evd: Handle) -> Return {
    call(|| {
        let (opened, word) = opened::of(evd, INVALID)?;
        opened.ia.evd_free(EvdHandle::from_raw(word))?;
        opened.unname(evd);
        Ok(())
    })
}

/// `dat_evd_post_se`.
pub(crate) unsafe extern "C" fn post_se(evd: Handle, event: *const abi::Event) -> Return {
    call(|| {
        required(event.cast_mut(), Subtype::InvalidArg2)?;
        // SAFETY: see the module `calls`.
        let event = unsafe { *event };
        if event.event_number != EventNumber::SOFTWARE.0 {
            return Err(Error::new(ErrorType::InvalidParameter, Subtype::InvalidArg2));
        }
        opened::with(evd, INVALID, |opened, word| {
            let evd = EvdHandle::from_raw(word);
            opened.ia.evd_post_se(evd, &dat::Event::software(evd, event.data[0] as usize))
        })
    })
}

/// `dat_evd_dequeue`. One that finds nothing does a piece of the device's work, and looks again.
pub(crate) unsafe extern "C" fn dequeue(evd: Handle, event: *mut abi::Event) -> Return {
    call(|| {
        required(event, Subtype::InvalidArg2)?;
        let take = |engine: bool| {
            opened::with(evd, INVALID, |opened, word| -> Result<abi::Event> {
                if engine {
                    opened.engine.step();
                }
                Ok(opened.event(evd, &opened.ia.evd_dequeue(EvdHandle::from_raw(word))?))
            })
        };
        let taken = match take(false) {
            Err(error) if error == ErrorType::QueueEmpty => take(true),
            taken => taken,
        };
        // SAFETY: see the module `calls`.
        unsafe { put(event, taken?, Subtype::InvalidArg2) }
    })
}

/// `dat_evd_wait`.
pub(crate) unsafe extern "C" fn wait(
    evd: Handle,
    timeout: u32,
    threshold: Count,
    event: *mut abi::Event,
    more: *mut Count,
) -> Return {
    call(|| {
        required(event, Subtype::InvalidArg4)?;
        let (opened, word) = opened::of(evd, INVALID)?;
        let threshold = count(threshold, Subtype::InvalidArg3)?;
        opened.engine.leave();
        let waited = opened.ia.evd_wait(EvdHandle::from_raw(word), timeout, threshold);
        // SAFETY: see the module `calls`.
        unsafe {
            match waited {
                Ok((taken, left)) => {
                    put_if(more, as_count(left));
                    put(event, opened.event(evd, &taken), Subtype::InvalidArg4)
                }
                Err(failure) => {
                    put_if(more, as_count(failure.nmore));
                    Err(failure.error)
                }
            }
        }
    })
}
